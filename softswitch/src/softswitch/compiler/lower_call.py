# SPDX-License-Identifier: Apache-2.0
"""From typed syntax to IR: calls, which are inlined with copy-in and copy-out.

Arguments are evaluated from left to right, as the call writes them (P4_16 1.2.5, section 6.8). An argument is passed by
reference where this makes no difference; otherwise it is copied into a local of the callee when its turn comes and, for
out and inout, copied back afterwards from left to right, also when the callee exits.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from softswitch.compiler import ast as A
from softswitch.compiler import ir
from softswitch.compiler import types as T
from softswitch.compiler.diagnostics import P4Error, Unsupported
from softswitch.compiler.ir import U32
from softswitch.compiler.lower_base import ApplyResult
from softswitch.compiler.lower_expr import ExprLowering, has_effects
from softswitch.compiler.objects import TableObject


@dataclass
class Copy:
    """A local of the callee for an out or inout parameter (its id()), and what stores it in the caller's argument."""

    param: int
    store: Callable[[ir.Value], None]
    value: ir.Value


@dataclass
class Frame:
    """One inlined call: the label for `return`, the variable for its value, and what must be copied back."""

    label: str
    result: ir.Var | None = None
    copies: list[Copy] = field(default_factory=list)  # in the order of the arguments
    returned: bool = False


@dataclass(eq=False)
class SliceTarget:
    """The place that a slice names: some bits of a variable, whose own place was found once. A call stores a value."""

    whole: ir.LValue
    value: ir.Value  # what the slice holds when this is evaluated
    store: Callable[[ir.Value], None]

    def __call__(self, value: ir.Value) -> None:
        self.store(value)


class CallLowering(ExprLowering):
    """Lowers calls: functions, actions, controls and tables are inlined where they are called or applied."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.frames: list[Frame] = []
        self.loops: list[tuple[str, str]] = []  # labels of break and continue
        self.exit_label = ""
        self.in_action = False
        self.action = ""  # the control-plane name of the action of a table, or called by a control, that is lowered
        self.in_function = False
        self.place: ir.LValue = ir.Var(U32, "")  # the variable that contains the last slice used as a target

    @abstractmethod
    def stmt(self, s: A.Stmt) -> None:
        """Defined in lower_stmt.py."""

    @abstractmethod
    def target(self, e: A.Expr) -> ir.LValue | SliceTarget:
        """Defined in lower_stmt.py."""

    def call(self, e: A.CallExpr) -> Any:
        outer, self.pos = self.pos, e.pos if e.pos.line else self.pos
        try:
            return self._call(e)
        finally:
            self.pos = outer

    def _call(self, e: A.CallExpr) -> Any:
        if e.builtin == "apply":
            assert isinstance(e.function, A.MemberExpr)
            if isinstance(e.decl, A.TableDecl):
                assert isinstance(e.function.base, A.NameExpr)
                return self.apply_table(self.bindings[id(e.function.base.decl)])
            return self.apply_block(e)
        if e.builtin:
            return self.header_method(e)
        if isinstance(e.decl, A.ActionDecl):
            if not self.in_action:  # p4c shows these to the control plane, but not actions that are called by actions
                name = self.bindings[id(e.decl)]
                self.program.actions.setdefault(name, e.decl)
                self.program.called.setdefault(self.function.name, []).append(name)
                self.action = name
            self.note("action", str(self.bindings[id(e.decl)]), text=e.decl.name, pos=e.decl.pos)
            try:
                with self.deeper():
                    return self.inline(e.decl.params, e.bound, e.decl.body, outer_names=True)
            finally:
                if not self.in_action:
                    self.action = ""
        if isinstance(e.decl, A.FunctionDecl) and e.decl.body is not None:
            return self.call_function(e)
        return self.call_extern(e)

    @abstractmethod
    def apply_table(self, table: TableObject) -> ApplyResult:
        """Defined in lower.py."""

    @abstractmethod
    def apply_block(self, e: A.CallExpr) -> None:
        """Defined in lower.py."""

    @abstractmethod
    def call_extern(self, e: A.CallExpr) -> Any:
        """Defined in lower_extern.py."""

    def call_function(self, e: A.CallExpr) -> ir.Value | None:
        decl: A.FunctionDecl = e.decl
        outer, outer_function = self.types, self.in_function
        self.in_function = True
        values = {}
        for var in self.type_vars(decl):
            if var.name in e.type_values:
                values[var] = self.substitute(e.type_values[var.name], outer)
        try:
            inner = {**outer, **values}
            result = None
            if decl.result_type != T.VOID:
                self.types = inner
                result = self.local(f"{decl.name}_result", self.type(decl.result_type, decl.pos))
                self.emit(ir.Zero(result))
                self.types = outer
            assert decl.body is not None
            self.inline(decl.params, e.bound, decl.body, result=result, types=inner)
            return result
        finally:
            self.types, self.in_function = outer, outer_function

    @abstractmethod
    def type_vars(self, decl: A.FunctionDecl) -> list[T.TypeVar]:
        """Defined in lower.py."""

    def inline(
        self, params: Sequence[A.Param], bound: dict[str, A.Expr], body: A.BlockStmt | Callable[[], None], *,
        result: ir.Var | None = None, types: dict[T.TypeVar, T.Type] | None = None, outer_names: bool = False,
    ) -> None:
        """Inlines `body` with its arguments. outer_names: whether the body sees variables other than its parameters."""
        frame = Frame(self.unique("return"), result)
        values = self.pass_arguments(params, bound, frame, body if outer_names else None)
        self.bindings.update(values)
        outer_types = self.types
        if types is not None:
            self.types = types
        self.frames.append(frame)
        outer_action, self.in_action = self.in_action, self.in_action or outer_names
        loops, self.loops = self.loops, []
        if callable(body):
            body()
        else:
            self.stmt(body)
        self.loops = loops
        self.in_action = outer_action
        self.frames.pop()
        self.types = outer_types
        if frame.returned:
            self.emit(ir.Label(frame.label))
        self.copy_back(frame)

    def copy_back(self, frame: Frame) -> None:
        for copy in frame.copies:
            copy.store(copy.value)

    def pass_arguments(
        self, params: Sequence[A.Param], bound: dict[str, A.Expr], frame: Frame, body: Any
    ) -> dict[int, Any]:
        """Evaluates arguments from left to right and returns what each parameter is bound to."""
        of = {p.name: p for p in params}
        args = [(of[name], arg) for name, arg in bound.items() if name in of]
        values: dict[int, Any] = {}
        named: list[tuple[A.Param, ir.LValue]] = []  # what each out and inout argument names, or slices
        written: list[ir.LValue] = []  # those of them that the callee may write to at any time
        read: list[ir.LValue] = []
        targets: list[Any] = []
        for i, (p, arg) in enumerate(args):
            later = [a for _, a in args[i + 1 :]]
            t = self.actual(p.type)
            if isinstance(t, T.Declared):
                values[id(p)] = self.instance_argument(arg)
                targets.append(None)
            elif p.direction in ("out", "inout"):
                if isinstance(arg, A.DontCare):
                    dummy = self.local(p.name, self.type(arg.type, arg.pos))
                    self.emit(ir.Zero(dummy))
                    targets.append(dummy)
                    continue
                target = self.target(arg)
                if isinstance(target, ir.LValue):
                    target = self.settled(target)
                named.append((p, target.whole if isinstance(target, SliceTarget) else target))
                if any(map(has_effects, later)):  # their evaluation must neither be seen nor be overtaken
                    values[id(p)] = self.copy_in(p, arg, target, frame)
                    targets.append(None)
                else:
                    targets.append(target)
                    if isinstance(target, ir.LValue):
                        written.append(target)
            else:
                if isinstance(arg, A.ListExpr | A.StructExpr | A.InvalidHeader | A.DefaultValue):
                    value: ir.Value = self.local(p.name, self.type(arg.type, arg.pos))
                    assert isinstance(value, ir.LValue)
                    self.store(value, arg)
                    self.temps.add(id(value))
                else:
                    value = self.saved(arg, *later)
                if isinstance(value, ir.LValue):
                    value = self.settled(value)
                    read.append(value)
                elif not isinstance(value, ir.Const):
                    value = self.temp(value, p.name)
                targets.append(value)
        # Where an in and an out argument share storage: of a scalar and a struct, the scalar is copied.
        local = {
            id(w)
            for w in written
            if ir.is_scalar(w.type) and any(_overlap(w, r) for r in read if not ir.is_scalar(r.type))
        }
        pairs = [(p, arg, target) for (p, arg), target in zip(args, targets, strict=True) if target is not None]
        for p, _, target in pairs:
            if p.direction not in ("out", "inout"):
                if isinstance(target, ir.LValue) and id(target) not in self.temps:
                    clash = any(_overlap(target, w) for w in written if id(w) not in local)
                    target = self.temp(target, p.name) if clash or self.mentions(body, target) else target
                values[id(p)] = target
        for p, arg, target in pairs:
            if p.direction in ("out", "inout"):
                alone = isinstance(target, ir.LValue) and id(target) not in local
                alone = alone and not any(_overlap(target, n) for other, n in named if other is not p)
                if alone and not self.mentions(body, target):
                    if p.direction == "out" and not isinstance(arg, A.DontCare):
                        self.clear_out(target)
                    values[id(p)] = target
                else:
                    values[id(p)] = self.copy_in(p, arg, target, frame)
        frame.copies.sort(key=lambda copy: [id(p) for p, _ in args].index(copy.param))
        return values

    def settled(self, lv: ir.LValue) -> ir.LValue:
        """The same place, whatever changes later: `next` and `last` of a stack are looked up now."""
        match lv:
            case ir.Field():
                base = self.settled(lv.base)
                return lv if base is lv.base else ir.Field(lv.type, base, lv.name)
            case ir.StackElement():
                base, at = self.settled(lv.base), lv.index
                if not isinstance(at, ir.Const) and id(at) not in self.temps:
                    at = self.temp(at, "index")
                return lv if base is lv.base and at is lv.index else ir.StackElement(lv.type, base, at)
        return lv

    def copy_in(self, p: A.Param, arg: A.Expr, target: ir.LValue | SliceTarget, frame: Frame) -> ir.Var:
        """Makes a local for an out or inout parameter, which is copied back when the call ends."""
        var = self.local(p.name, self.type(p.type if not T.has_vars(p.type) else arg.type, p.pos))
        if p.direction == "inout":
            self.emit(ir.Assign(var, target.value if isinstance(target, SliceTarget) else target))
        else:
            self.emit(ir.Zero(var))
        frame.copies.append(Copy(id(p), self.setter(target), var))
        return var

    def setter(self, target: ir.LValue | SliceTarget) -> Callable[[ir.Value], None]:
        if isinstance(target, ir.LValue):
            return lambda value: self.emit(ir.Assign(target, value))
        return target

    def clear_out(self, target: ir.LValue) -> None:
        """Initialises an out parameter: headers are invalid, and the rest is zero, as in BMv2."""
        if not ir.is_scalar(target.type):
            self.emit(ir.Zero(target))

    def mentions(self, body: Any, target: ir.LValue) -> bool:
        """True if the body of an action names the variable that `target` is part of."""
        if body is None:
            return False
        var = ir.root(target)
        return any(
            (bound := self.bindings.get(id(name.decl))) is not None
            and isinstance(bound, ir.LValue)
            and ir.root(bound) is var
            for name in names_in(body)
        )

    def instance_argument(self, arg: A.Expr) -> Any:
        if isinstance(arg, A.NameExpr):
            return self.bindings.get(id(arg.decl))
        raise P4Error(arg.pos, "expected the name of an instance")

    def header_method(self, e: A.CallExpr) -> Any:
        assert isinstance(e.function, A.MemberExpr)
        base = self.expr(e.function.base)
        match e.builtin:
            case "isValid":
                return self.valid(base)
            case "setValid" | "setInvalid":
                assert isinstance(base, ir.LValue)
                if isinstance(base.type, ir.RecordType) and base.type.kind == "union":
                    for name, t in base.type.fields.items():
                        self.emit(ir.SetValid(ir.Field(t, base, name), False))
                else:
                    self.emit(ir.SetValid(base, e.builtin == "setValid"))
                return None
            case "push_front" | "pop_front":
                assert isinstance(base, ir.LValue)
                count = e.args[0].value.const
                self.emit(ir.Shift(base, count if e.builtin == "push_front" else -count))
                return None
        raise Unsupported(e.pos, f"'{e.builtin}' is not supported here")


def _overlap(a: ir.LValue, b: ir.LValue) -> bool:
    """True if two l-values may share storage."""
    if ir.root(a) is not ir.root(b):
        return False
    pa, pb = _path(a), _path(b)
    return all(x == y or x is None or y is None for x, y in zip(pa, pb, strict=False))


def _path(lv: ir.Value) -> list[str | int | None]:
    path: list[str | int | None] = []
    while isinstance(lv, ir.Field | ir.StackElement | ir.NextIndex):
        if isinstance(lv, ir.Field):
            base = lv.base.type
            # the headers of a union share their validity: one that becomes valid invalidates the others
            path.append(None if isinstance(base, ir.RecordType) and base.kind == "union" else lv.name)
        elif isinstance(lv, ir.StackElement):
            path.append(lv.index.value if isinstance(lv.index, ir.Const) else None)
        else:
            path.append("nextIndex")
        lv = lv.base
    return path[::-1]


def names_in(node: Any) -> list[A.NameExpr]:
    """All names that are used in a piece of syntax, also in the actions that it calls."""
    return [n for n in _nodes_in(node) if isinstance(n, A.NameExpr)]


def calls_in(node: Any) -> list[A.CallExpr]:
    """All calls in a piece of syntax, and in the actions that it calls."""
    return [n for n in _nodes_in(node) if isinstance(n, A.CallExpr)]


def _nodes_in(node: Any) -> list[A.Node]:
    found: list[A.Node] = []
    seen: set[int] = set()

    def visit(n: Any) -> None:
        if isinstance(n, list | tuple):
            for part in n:
                visit(part)
        elif isinstance(n, A.Node) and id(n) not in seen:
            seen.add(id(n))
            found.append(n)
            if isinstance(n, A.CallExpr):
                visit(list(n.bound.values()))
                if isinstance(n.decl, A.ActionDecl):
                    visit(n.decl.body)
            for name, value in vars(n).items():
                if name not in ("decl", "type", "pos", "bound"):
                    visit(value)

    visit(node)
    return found
