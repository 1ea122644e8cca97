# SPDX-License-Identifier: Apache-2.0
"""The operations that BMv2 supports in each stage of the pipeline: this compiler refuses the same ones as p4c's back
end for BMv2.

Programs that only this switch could run would be useless elsewhere. The exceptions are the functions that older
versions of v1model.p4 had (clone3, resubmit and recirculate with data, mark_to_drop without arguments): old programs
need them. A stage has the name of its function in program.LoweredProgram.
"""

from __future__ import annotations

from collections.abc import Iterator

from softswitch.compiler import ir
from softswitch.compiler.diagnostics import P4Error, Pos, Unsupported
from softswitch.compiler.objects import TableObject
from softswitch.compiler.program import Function

NAMES = {
    "parse": "a parser", "verify_checksum": "the control that verifies checksums", "ingress": "an ingress control",
    "egress": "an egress control", "compute_checksum": "the control that computes checksums", "deparse": "a deparser",
}
_CONTROLS = ("ingress", "egress")
_ALONE = {
    "verify_checksum": {"verify_checksum", "verify_checksum_with_payload"},
    "compute_checksum": {"update_checksum", "update_checksum_with_payload"},
}
_PARSER = {"verify", "log_msg"}
_CHECKSUMS = {name for names in _ALONE.values() for name in names}
_WHERE = {  # functions that belong to one stage
    "resubmit": "ingress", "resubmit_preserving_field_list": "ingress",
    "recirculate": "egress", "recirculate_preserving_field_list": "egress",
}
_CLONES = {"clone", "clone3", "clone_preserving_field_list"}


def check_function(stage: str, name: str, pos: Pos) -> None:
    """Raises P4Error where the extern function `name` cannot be called in this stage."""
    belongs = _WHERE.get(name, stage)
    fits = name in _ALONE[stage] if stage in _ALONE else name not in _CHECKSUMS
    fits = fits and (name in _PARSER if stage == "parse" else name != "verify")
    if stage == "deparse" and name in _CLONES:
        fits = False
    if belongs != stage or not fits:
        raise Unsupported(pos, f"{name}() cannot be called in {NAMES[stage]}, on BMv2")


def check_method(stage: str, extern: str, pos: Pos) -> None:
    """Raises P4Error where methods of this extern cannot be called in this stage."""
    fits = {"packet_in": stage == "parse", "packet_out": stage == "deparse"}.get(extern, stage in _CONTROLS)
    if not fits:
        raise Unsupported(pos, f"{extern} cannot be used in {NAMES[stage]}, on BMv2")


def check_clone(stage: str, member: str, pos: Pos) -> None:
    """Raises P4Error unless this member of CloneType belongs to this stage."""
    if (member, stage) not in (("I2E", "ingress"), ("E2E", "egress")):
        raise P4Error(pos, f"CloneType.{member} cannot be cloned to in {NAMES[stage]}: "
                           "I2E belongs to ingress, E2E to egress")


def check_statement(stage: str, what: str, pos: Pos, *, called: bool = False) -> None:
    """Raises P4Error where statements of the kind `what` cannot run in this stage; called: in a function."""
    if stage in _CONTROLS or (stage == "parse" and not called):
        return
    where = "in a function that a parser calls" if stage == "parse" else f"in {NAMES[stage]}"
    raise Unsupported(pos, f"{what} cannot stand {where}, on BMv2")


def check_tables(function: Function) -> None:
    """Raises P4Error where BMv2's graph of tables, in which each has one place, cannot express this control.

    A table may be applied in several branches, as long as the same follows after each of them.
    """
    graph = _Graph(function)
    first: dict[TableObject, ir.Apply] = {}
    for apply in graph.applies:
        other = first.setdefault(apply.table, apply)
        if other is apply:
            continue
        message = f"table {apply.table.name} is applied twice, first at {other.pos}: "
        if graph.reaches(other, apply):
            raise Unsupported(apply.pos, message + "on BMv2 a packet meets a table once in a pipeline")
        if graph.after(other) is not graph.after(apply):
            raise Unsupported(apply.pos, message + "on BMv2 the same must follow after both")


class _Graph:
    """Which instruction runs after which; jumps backwards, of loops, are left out."""

    def __init__(self, function: Function) -> None:
        self.next: dict[int, list[ir.Instruction]] = {}  # by id(instruction)
        self.applies: list[ir.Apply] = []
        self.labels: dict[str, ir.Instruction] = {}
        self.variables = {id(v) for v in function.locals}
        self.collect(function.body)
        if len({id(a.table) for a in self.applies}) < len(self.applies):
            self.link(function.body, None)

    def collect(self, body: list[ir.Instruction]) -> None:
        for part in body:
            if isinstance(part, ir.Label):
                self.labels[part.name] = part
            for inner in _bodies(part):
                self.collect(inner)
            if isinstance(part, ir.Apply):
                self.applies.append(part)

    def link(self, body: list[ir.Instruction], after: ir.Instruction | None) -> None:
        for i, part in enumerate(body):
            following = body[i + 1] if i + 1 < len(body) else after
            found: list[ir.Instruction | None] = []
            for inner in _bodies(part):
                self.link(inner, following)
                if isinstance(part, ir.If):
                    found.append(inner[0] if inner else following)
                elif inner:  # what an action does, before the next statement
                    found.append(inner[0])
            if isinstance(part, ir.Goto):
                found = [] if part.counted else [self.labels.get(part.name)]
            elif not isinstance(part, ir.If):
                found.append(following)
            self.next[id(part)] = [f for f in found if f is not None]

    def after(self, apply: ir.Apply) -> ir.Instruction | None:
        """The instruction that runs after a table and its action. Labels, jumps and assignments to variables, for which
        p4c gives BMv2 nothing to run, are skipped."""
        at: ir.Instruction | None = apply
        while at is not None:
            following = self.next[id(at)]
            at = following[-1] if following else None
            if isinstance(at, ir.Label | ir.Goto):
                continue
            if isinstance(at, ir.Assign | ir.Zero) and id(ir.root(at.dst)) in self.variables:
                continue
            break
        return at

    def reaches(self, start: ir.Apply, goal: ir.Apply) -> bool:
        seen, todo = set[int](), list(self.next[id(start)])
        while todo:
            at = todo.pop()
            if at is goal:
                return True
            if id(at) not in seen:
                seen.add(id(at))
                todo += self.next[id(at)]
        return False


def _bodies(part: ir.Instruction) -> Iterator[list[ir.Instruction]]:
    if isinstance(part, ir.If):
        yield part.then
        yield part.other
    elif isinstance(part, ir.Apply):
        for case in part.cases:
            yield case.body
