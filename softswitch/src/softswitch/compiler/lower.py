# SPDX-License-Identifier: Apache-2.0
"""Lowers a checked program: from its `main` to the six functions of a LoweredProgram."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from softswitch.compiler import ast as A
from softswitch.compiler import ir, stages
from softswitch.compiler import types as T
from softswitch.compiler.architecture import STANDARD
from softswitch.compiler.c_text import MORE_STANDARD
from softswitch.compiler.check import Checker
from softswitch.compiler.diagnostics import NOWHERE, P4Error, Unsupported
from softswitch.compiler.elaborate import BlockInstance, control_plane_name
from softswitch.compiler.ir import U32
from softswitch.compiler.lower_base import ApplyResult
from softswitch.compiler.lower_call import Frame
from softswitch.compiler.lower_extern import ExternLowering
from softswitch.compiler.objects import ActionObject, ExternObject, TableObject
from softswitch.compiler.program import Function, LoweredProgram

_STAGES = ["parse", "verify_checksum", "ingress", "egress", "compute_checksum", "deparse"]
_PARAMS = [["packet", "hdr", "meta", "standard"], ["hdr", "meta"], ["hdr", "meta", "standard"],
           ["hdr", "meta", "standard"], ["hdr", "meta"], ["packet", "hdr"]]


def lower(program: A.SyntaxTree, checker: Checker, source: str, *, trace: bool = False) -> LoweredProgram:
    """Lowers a program, for the packet trace where `trace` says so. Raises P4Error for what has no meaning on v1model,
    or is not supported."""
    lowering = _Lowering(program, checker, source)
    lowering.tracing = trace
    return lowering.run()


class _Lowering(ExternLowering):
    """Lowers one checked program: finds `main`, makes its instances, and lowers each stage."""

    def __init__(self, program: A.SyntaxTree, checker: Checker, source: str) -> None:
        super().__init__(checker.specialize, source, checker.errors)
        self.ast = program
        self.checker = checker
        self.program.errors = checker.error_names
        self.parts: dict[str, T.Type] = {}  # the types of headers and metadata

        self.block: BlockInstance  # whose body is being lowered

    def run(self) -> LoweredProgram:
        main = self.find_main()
        assert main.type is not None
        blocks = self.elaborate(main)
        self.program.blocks = blocks
        self.program.evaluate = lambda e: self.checker.expr(e).const
        self.make_state(main, blocks)
        for stage, block, params in zip(_STAGES, blocks, _PARAMS, strict=True):
            self.stage(stage, block, params)
        for table in self.program.tables:
            if table.meter is not None and id(table.meter) not in self.meters_read:
                raise P4Error(table.decl.pos, f"no action reads the direct meter {table.meter.name} of this table")
        self.name_profiles()
        self.program.annotations = main.annotations
        for decl in self.ast.decls:
            if isinstance(decl, A.EnumDecl) and decl.syntax is None and not decl.pos.file.startswith("<"):
                self.program.enums[decl.name] = [name for name, _, _ in decl.members]
            if isinstance(decl, A.StructDecl) and decl.annotation("controller_header"):
                self.program.controller_headers.append(self.checker.specialize(decl, ()))
        return self.program

    def name_profiles(self) -> None:
        """Names the action profiles that are made in a table's property as p4c does for BMv2: by their number, in the
        order in which tables are applied; @name names one, and takes a number as well."""
        number = 0
        for table in self.program.tables:
            prop = table.decl.properties.get("implementation")
            if table.profile is None or prop is None or not isinstance(prop.value, A.CallExpr):
                continue
            if not any(note.name == "name" and note.args for note in prop.annotations):
                table.profile.name = f"action_profile_{number}"
            number += 1

    def find_main(self) -> A.InstanceDecl:
        for decl in self.ast.decls:
            if isinstance(decl, A.InstanceDecl):
                t = decl.type
                if isinstance(t, T.Declared) and t.kind == "package" and decl.name == "main":
                    if t.name != "V1Switch":
                        raise Unsupported(decl.pos, f"architecture {t.name} is not supported: main must be a V1Switch")
                    return decl
        raise P4Error(self.ast.decls[-1].pos if self.ast.decls else NOWHERE, "no 'main' instance of V1Switch")

    def elaborate(self, main: A.InstanceDecl) -> list[BlockInstance]:
        for decl in self.ast.decls:
            if isinstance(decl, A.InstanceDecl) and decl is not main:
                if isinstance(decl.type, T.Declared) and decl.type.kind == "package":
                    continue  # nothing but `main` means anything
                made = self.instantiate(decl, decl.call, control_plane_name("", decl))
                if isinstance(made, ExternObject):
                    made.is_global = True
                self.bindings[id(decl)] = made
            elif isinstance(decl, A.ActionDecl):
                self.bindings[id(decl)] = control_plane_name("", decl)
        blocks: list[BlockInstance] = []
        for p in main.call.decl.ctor_params:
            arg = main.call.bound[p.name]
            if isinstance(arg, A.CallExpr) and arg.builtin == "new":
                block = self.instantiate(None, arg, arg.decl.name)
            else:
                block = self.instance_argument(arg)
            if not isinstance(block, BlockInstance):
                raise P4Error(arg.pos, f"expected a {p.type}")
            blocks.append(block)
        if [len(b.decl.params) for b in blocks] != [len(p) for p in _PARAMS]:
            raise P4Error(main.pos, "this V1Switch is not the one of v1model.p4")
        return blocks

    def make_state(self, main: A.InstanceDecl, blocks: list[BlockInstance]) -> None:
        params = blocks[0].decl.params
        assert isinstance(main.type, T.Declared)
        hdr_type, meta_type = map(self.actual, main.type.args)  # of V1Switch<H, M>
        _check_state(hdr_type, meta_type, params)
        self.parts = {"hdr": hdr_type, "meta": meta_type}
        hdr = ir.Var(self.type(hdr_type, params[1].pos), "hdr", "state")
        meta = ir.Var(self.type(meta_type, params[2].pos), "meta", "state")
        standard = self.type(params[3].type, params[3].pos)
        declared = self.actual(params[3].type)
        if isinstance(declared, T.Struct):
            self.program.port_type = declared.fields.get("egress_spec")
        self.standard = ir.Var(standard, "standard_metadata", "packet")
        self.program.state, self.program.standard = [hdr, meta], standard
        assert isinstance(standard, ir.RecordType)
        more = {name: t for name, t in standard.fields.items() if name not in STANDARD}
        if more:
            record = ir.RecordType("struct", self.unique("struct_more_standard"), str(declared), more)
            self.program.records.append(record)
            self.program.extra = ir.Var(record, MORE_STANDARD, "state")
        self.collect_field_lists(meta_type, (), [])

    def collect_field_lists(self, t: T.Type, path: tuple[str, ...], outer: list[int]) -> None:
        """Collects the paths of the user metadata with an annotation @field_list(n)."""
        if not isinstance(t, T.Struct) or t.kind != "struct":
            for number in outer:
                self.program.field_lists.setdefault(number, []).append(path)
            return
        for field in t.decl.fields:
            note = field.annotation("field_list")
            numbers = outer
            if note is not None:
                self_numbers = [self.checker.constant(a) for a in note.args]
                if any(not 0 <= number < 256 for number in self_numbers):
                    raise P4Error(note.pos, "@field_list: expected numbers of 8 bits")
                numbers = [*outer, *self_numbers]
            self.collect_field_lists(self.actual(t.fields[field.name]), (*path, field.name), numbers)

    def stage(self, name: str, block: BlockInstance, params: list[str]) -> None:
        self.function = Function(name)
        self.program.functions[name] = self.function
        self.out = self.function.body
        self.frames, self.loops = [], []
        values: dict[str, Any] = {v.name: v for v in self.program.state}
        values["standard"] = self.standard
        values["packet"] = None
        for p, what in zip(block.decl.params, params, strict=True):
            variable = values[what]
            if isinstance(p.type, T.TypeVar) and what in self.parts:
                self.types = {**self.types, p.type: self.parts[what]}
            if variable is not None and self.type(p.type, p.pos) is not variable.type:
                raise P4Error(p.pos, f"'{p.name}' is of type {p.type}, but another one in the parser of this V1Switch")
            self.bindings[id(p)] = variable
        self.bindings.update(block.members)
        self.block_name, self.block, block.applied = block.name, block, True
        self.exit_label = self.function.exit = self.unique("exit")
        self.depth = 0
        self.note("stage", name, text=block.decl.name, pos=block.decl.pos)
        self.depth = 1
        if block.decl.kind == "parser":
            self.in_parser = True
            self.parser_body(block, self.exit_label)
            self.in_parser = False
        else:
            self.control_body(block)
        self.emit(ir.Label(self.exit_label))
        self.types = {}
        if name in ("ingress", "egress"):
            stages.check_tables(self.function)

    def control_body(self, block: BlockInstance) -> None:
        for local in block.decl.locals:
            if isinstance(local, A.VarDecl):
                self.pos = local.pos
                self.declare(local)
        assert block.decl.apply is not None
        frame = Frame(self.unique("return"))
        self.frames.append(frame)
        self.stmt(block.decl.apply)
        self.frames.pop()
        if frame.returned:
            self.emit(ir.Label(frame.label))

    # ---- calls that need the whole program -----------------------------------------------------------------------

    def type_vars(self, decl: A.FunctionDecl) -> list[T.TypeVar]:
        return [self.checker.variable(p) for p in decl.type_params]

    def no_action(self) -> A.ActionDecl:
        found = self.checker.globals.find("NoAction")
        assert isinstance(found, A.ActionDecl)
        return found

    def apply_block(self, e: A.CallExpr) -> None:
        assert isinstance(e.function, A.MemberExpr)
        base = e.function.base
        block: Any = None
        if isinstance(base, A.NameExpr) and base.decl is not None:
            block = self.bindings.get(id(base.decl))
        else:  # Control.apply(...): an instance without a name
            call = A.CallExpr(base, [], [], pos=e.pos, type=base.type, decl=e.decl, builtin="new")
            block = self.instantiate(None, call, f"{self.block_name}.{e.decl.name}" if self.block_name else e.decl.name)
            if isinstance(block, BlockInstance):
                self.block.unnamed.append(block)
        if not isinstance(block, BlockInstance):
            raise P4Error(e.pos, "expected a control or parser instance")
        if block.decl.kind == "parser" and not self.in_parser:
            raise P4Error(e.pos, f"parser {block.decl.name} is applied outside a parser")
        values = {self.checker.variable(p): e.type_values.get(p.name) for p in block.decl.type_params}
        types = {k: self.substitute(v, self.types) for k, v in values.items() if v is not None}

        def body() -> None:
            block.applied = True
            outer, self.block_name = self.block_name, block.name
            self.note("block", block.name, text=block.decl.name, pos=block.decl.pos)
            self.depth += 1
            outer_block, self.block = self.block, block
            self.bindings.update(block.members)
            if block.decl.kind == "parser":
                self.parser_body(block, self.exit_label)
            else:
                self.control_body(block)
            self.block_name = outer
            self.depth -= 1
            self.block = outer_block

        self.inline(block.decl.params, e.bound, body, types={**self.types, **types} if types else None)

    def apply_table(self, table: TableObject) -> ApplyResult:
        stages.check_statement(self.function.name, "a table", self.pos, called=True)
        if table.index < 0:
            table.index = len(self.program.tables)
            self.program.tables.append(table)
        self.note("apply", table.name)
        hit, run = self.local("hit", T.BOOL), self.local("run", U32)
        keys: list[ir.Value] = []
        selectors: list[ir.Value] = []
        elements = [k.element.value for k in table.keys]
        for i, key in enumerate(table.keys):
            value = self.cast(self.saved(elements[i], *elements[i + 1 :]), key.type)
            (selectors if key.match == "selector" else keys).append(value)
        entry = self.unique("entry")
        cases = []
        for action in table.actions:
            case = self.action_case(action)
            if table.meter is not None:
                metered: list[ir.Instruction] = []
                with self.into(metered):
                    self.read_direct_meter(table, entry)
                if metered:
                    case.body.insert(0, ir.If(hit, metered, [], pos=self.pos))
            cases.append(case)
            self.program.actions.setdefault(action.name, action.decl)
        self.emit(ir.Apply(table, keys, selectors, hit, run, entry, cases))
        return ApplyResult(table, hit, run)

    def action_case(self, action: ActionObject) -> ir.ActionCase:
        """The code of an action of a table: data from the entry, other arguments as bound in the table's list."""
        params = []
        for p in action.decl.params:
            if not p.direction:
                var = self.local(p.name, self.type(p.type, p.pos))
                params.append(var)
                self.bindings[id(p)] = var
        body: list[ir.Instruction] = []
        outer, self.action = self.action, action.name
        with self.into(body), self.deeper():
            self.note("action", action.name, text=action.decl.name, pos=action.decl.pos)
            self.depth += 1
            directed = [p for p in action.decl.params if p.direction]
            self.inline(directed, action.refs.bound, action.decl.body, outer_names=True)
            self.depth -= 1
        self.action = outer
        return ir.ActionCase(params, body)


def _check_state(hdr: T.Type, meta: T.Type, params: Sequence[A.Param]) -> None:
    """Refuses headers and metadata that BMv2's back end refuses: `params` are those of the parser."""
    if not (isinstance(hdr, T.Struct) and hdr.kind == "struct" and _headers_alone(hdr)):
        raise P4Error(params[1].pos, f"the headers must be a struct of headers, stacks and unions, which {hdr} is not")
    if not (isinstance(meta, T.Tuple) or (isinstance(meta, T.Struct) and meta.kind == "struct")):
        raise P4Error(params[2].pos, f"the metadata must be a struct, not {meta}")


def _headers_alone(t: T.Type) -> bool:
    if isinstance(t, T.Struct) and t.kind == "struct":
        return all(map(_headers_alone, t.fields.values()))
    return isinstance(t, T.Struct) or (isinstance(t, T.Stack) and _headers_alone(t.item))
