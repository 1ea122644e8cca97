# SPDX-License-Identifier: Apache-2.0
"""Instances: from `main` on, makes the object of every control, parser, extern and table, with its name."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any

from softswitch.compiler import ast as A
from softswitch.compiler import ir
from softswitch.compiler import types as T
from softswitch.compiler.diagnostics import P4Error, Unsupported
from softswitch.compiler.lower_stmt import StmtLowering
from softswitch.compiler.objects import ActionObject, ConstEntry, ExternObject, Key, TableObject, ValueSet

_UNITS = ["packets", "bytes", "packets_and_bytes"]  # CounterType
_MATCHES = {"exact", "lpm", "ternary", "range", "optional", "selector"}
_ARRAYS = {"counter": "counter", "direct_counter": "counter", "meter": "meter", "direct_meter": "meter",
           "register": "register", "action_profile": "profile", "action_selector": "profile"}
_MAX_CELLS = 1 << 26
_MAX_BLOCKS = 10_000
_MAX_MEMORY = 4 << 30
_CELL = 64  # bytes of a counter's or meter's cell, at most
_MAX_SIZE = (1 << 31) - 1


@dataclass(eq=False)
class BlockInstance:
    """An instance of a parser or control: its name, and the values of constructor parameters and local instances."""

    decl: A.BlockDecl
    name: str
    members: dict[int, Any] = field(default_factory=dict)  # id(declaration) -> instance or value
    unnamed: list[BlockInstance] = field(default_factory=list)  # those that Control.apply() makes
    applied: bool = False


def control_plane_name(prefix: str, decl: A.Decl) -> str:
    """The fully qualified name; @name("x") replaces its last part, @name(".x") all of it."""
    name = decl.name
    note = decl.annotation("name")
    if note is not None and note.args and isinstance(note.args[0], A.StrLit):
        name = note.args[0].value
        if name.startswith("."):
            return name[1:]
    return f"{prefix}.{name}" if prefix else name


class Elaboration(StmtLowering):
    """Makes the instances of controls, parsers, externs, tables and value sets, with their control-plane names."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.block_name = ""  # of the control or parser whose body is being lowered
        self.blocks = 0  # instances of controls and parsers
        self.memory = 0  # bytes of all registers, counters and meters
        self.taken: dict[tuple[type, str], A.Decl] = {}  # by kind and control-plane name

    def instantiate(self, decl: Any, call: A.CallExpr, name: str) -> Any:
        """Makes the instance that `Type(arguments) name` declares."""
        t = call.type
        assert isinstance(t, T.Declared)
        if t.kind == "extern":
            return self.make_extern(t, call, name, decl)
        if t.kind in ("control", "parser"):
            return self.make_block(t.decl, call, name)
        raise P4Error(call.pos, f"a {t.kind} cannot be instantiated here")

    def make_block(self, decl: A.BlockDecl, call: A.CallExpr, name: str) -> BlockInstance:
        self.blocks += 1
        if self.blocks > _MAX_BLOCKS:
            raise P4Error(call.pos, f"more than {_MAX_BLOCKS} instances of controls and parsers")
        block = BlockInstance(decl, name)
        for p in decl.ctor_params:
            if p.name in call.bound:
                block.members[id(p)] = self.constructor_argument(call.bound[p.name])
        self.bindings.update(block.members)
        for local in decl.locals:
            member: Any
            match local:
                case A.InstanceDecl():
                    member = self.instantiate(local, local.call, control_plane_name(name, local))
                case A.TableDecl():
                    self.take_name(control_plane_name(name, local), local)
                    member = self.make_table(local, name)
                case A.ValueSetDecl():
                    member = self.make_value_set(local, name)
                case A.ActionDecl():
                    member = control_plane_name(name, local)
                    self.take_name(member, local)
                case _:
                    continue
            block.members[id(local)] = member
            self.bindings[id(local)] = member
        return block

    def take_name(self, name: str, decl: A.Decl) -> None:
        """Registers a control-plane name. Raises P4Error where another object of the same kind has it."""
        first = self.taken.setdefault((type(decl), name), decl)
        if first is not decl:
            raise P4Error(decl.pos, f"the control plane's name '{name}' is also that of the one at {first.pos}")

    def constructor_argument(self, e: A.Expr) -> Any:
        if isinstance(e, A.CallExpr) and e.builtin == "new":
            return self.instantiate(None, e, "")
        if isinstance(e, A.NameExpr) and not isinstance(e.decl, A.ConstDecl):
            return self.bindings[id(e.decl)]
        known = self.scalar_const(e)
        return known if known is not None else e

    def checked_number(self, e: A.Expr) -> int:
        """The value of an integer in an annotation."""
        if not isinstance(e, A.IntLit):
            raise P4Error(e.pos, "expected an integer")
        return e.value

    def small(self, e: A.Expr, what: str) -> int:
        """The value of a size or priority, which must fit 31 bits."""
        value = self.number(e)
        if not 0 <= value <= _MAX_SIZE:
            raise P4Error(e.pos, f"{what} of {value}: expected a number up to {_MAX_SIZE}")
        return value

    def number(self, e: A.Expr) -> int:
        """The value of a constructor argument or property that is an integer."""
        value = self.expr(e)
        if not isinstance(value, ir.Const):
            raise P4Error(e.pos, "expected a value known at compile time")
        return value.value

    # ---- externs ------------------------------------------------------------------------------------------------

    def make_extern(self, t: T.Declared, call: A.CallExpr, name: str, decl: Any) -> ExternObject:
        kind = t.name
        array = _ARRAYS.get(kind)
        if array is None:
            raise Unsupported(call.pos, f"extern {kind} cannot be instantiated: BMv2 has none")
        objects = self.program.objects(array)
        made = ExternObject(kind, name, decl, len(objects))
        args = call.bound
        if "size" in args:
            made.size = self.small(args["size"], "size")
            if made.size > _MAX_CELLS:
                raise Unsupported(call.pos, f"{kind} of {made.size} cells; at most {_MAX_CELLS} are supported")
        if "type" in args:
            units = _UNITS if "counter" in kind else ["packets", "bytes"]
            kind_number = self.number(args["type"])
            if kind_number >= len(units):
                raise P4Error(call.pos, f"{kind} of type {kind_number}: expected a member of its enum")
            made.unit = units[kind_number]
        if kind == "register":
            made.type, made.declared = self.type(t.args[0], call.pos), t.args[0]
            if not isinstance(made.type, T.Bits) and made.type != T.BOOL:
                raise Unsupported(call.pos, f"a register of {t.args[0]}: only bit, int and bool are supported")
        self.memory += made.size * ((ir.bits_of(made.type) + 7) // 8 if kind == "register" else _CELL)
        if self.memory > _MAX_MEMORY:
            raise P4Error(call.pos, f"registers, counters and meters of more than {_MAX_MEMORY >> 30} GiB in all")
        if kind == "action_selector":
            made.algorithm = self.number(args["algorithm"])
            notes = {n.name: n for n in getattr(decl, "annotations", None) or []}
            if "max_group_size" in notes and notes["max_group_size"].args:
                made.max_group_size = self.checked_number(notes["max_group_size"].args[0])
        objects.append(made)
        return made

    # ---- value sets ---------------------------------------------------------------------------------------------

    def make_value_set(self, decl: A.ValueSetDecl, prefix: str) -> ValueSet:
        t = self.actual(decl.type)
        fields: list[tuple[str, str, Any]] = []
        if isinstance(t, T.Struct):
            for f in t.decl.fields:
                note = next((a for a in f.annotations if a.name == "match"), None)
                match = note.text[0] if note and note.text else "exact"
                fields.append((f.name, match, self.type(t.fields[f.name])))
        elif isinstance(t, T.Tuple):
            fields = [(f"f{i}", "exact", self.type(item)) for i, item in enumerate(t.items)]
        else:
            fields = [(decl.name, "exact", self.type(t, decl.pos))]
        name = control_plane_name(prefix, decl)
        made = ValueSet(name, decl, len(self.program.value_sets), self.small(decl.size, "size"), fields)
        self.program.value_sets.append(made)
        return made

    # ---- tables -------------------------------------------------------------------------------------------------

    def make_table(self, decl: A.TableDecl, prefix: str) -> TableObject:
        table = TableObject(control_plane_name(prefix, decl), decl, -1)
        for k in decl.keys:
            if k.match not in _MATCHES:
                raise Unsupported(k.match_pos, f"match_kind '{k.match}' is not supported by v1model")
            t = self.type(k.value.type, k.pos)
            assert isinstance(t, T.Bits | T.Basic)
            table.keys.append(Key(self.key_name(k), k.match, t, k))
        lpm = [k for k in decl.keys if k.match == "lpm"]
        if len(lpm) > 1:
            raise Unsupported(lpm[1].match_pos, f"table {decl.name} has two lpm keys; one is supported")
        for ref in decl.actions:
            params = [p for p in ref.decl.params if not p.direction]
            action = ActionObject(
                self.bindings.get(id(ref.decl)) or control_plane_name("", ref.decl),
                ref.decl, [(p.name, self._param_type(p)) for p in params], ref,
            )
            table.actions.append(action)
        self.add_default(table, decl)
        props = decl.properties
        if "size" in props:
            table.size = self.small(props["size"].value, "size")
        if "support_timeout" in props:
            if props["support_timeout"].value.type != T.BOOL:
                raise P4Error(props["support_timeout"].pos, "support_timeout of a table is true or false")
            table.idle_timeout = bool(self.number(props["support_timeout"].value))
        table.profile = self.attached(table, "implementation", ("action_profile", "action_selector"))
        table.counter = self.attached(table, "counters", ("direct_counter",))
        table.meter = self.attached(table, "meters", ("direct_meter",))
        if decl.entries is not None:
            table.const_entries = decl.const_entries
            self.add_entries(table, decl)
        return table

    def _param_type(self, p: A.Param) -> Any:
        t = self.type(p.type, p.pos)
        if not isinstance(self.actual(p.type), T.Bits | T.Enum):
            raise P4Error(p.pos, f"an action's data cannot be of type {p.type}")
        return t

    def add_default(self, table: TableObject, decl: A.TableDecl) -> None:
        ref = decl.default
        if ref is None:
            # p4c: a table without default_action has NoAction, for default only
            found = [i for i, a in enumerate(table.actions) if a.name == "NoAction"]
            if not found:
                no_action = self.no_action()
                only = [A.Annotation("defaultonly", [], [])]
                ref = A.ActionRef(expr=A.NameExpr("NoAction"), annotations=only, decl=no_action)
                table.actions.append(ActionObject("NoAction", no_action, [], ref))
                found = [len(table.actions) - 1]
            table.default = found[0]
            return
        table.default = next(i for i, a in enumerate(table.actions) if a.decl is ref.decl)
        table.default_args = self.action_data(table.actions[table.default], ref)
        table.const_default = decl.properties["default_action"].const

    @abstractmethod
    def no_action(self) -> A.ActionDecl:
        """The declaration of NoAction; defined in lower.py."""

    def action_data(self, action: ActionObject, ref: A.ActionRef) -> list[int]:
        values = []
        for name, _ in action.params:
            e = ref.bound.get(name)
            if e is None:
                raise P4Error(ref.pos, f"action {action.name}: no value for '{name}'")
            values.append(self.number(e))
        return values

    def attached(self, table: TableObject, name: str, kinds: tuple[str, ...]) -> ExternObject | None:
        prop = table.decl.properties.get(name)
        if prop is None:
            return None
        if isinstance(prop.value, A.CallExpr) and prop.value.builtin == "new" and name != "meters":
            note = next((a for a in prop.annotations if a.name == "name" and a.args), None)
            made = self.instantiate(prop, prop.value, f"{table.name}.{name}")
            if note is not None and isinstance(note.args[0], A.StrLit):
                text = note.args[0].value
                made.name = text.removeprefix(".")
        else:
            made = self.bindings.get(id(prop.value.decl)) if isinstance(prop.value, A.NameExpr) else None
        if not isinstance(made, ExternObject) or made.kind not in kinds:
            raise P4Error(prop.pos, f"'{name}' of a table needs a {' or '.join(kinds)}")
        if made.kind.startswith("direct"):
            if made.table is not None:
                raise P4Error(prop.pos, f"{made.name} already belongs to table {made.table.name}")
            made.table = table
        return made

    def key_name(self, k: A.KeyElement) -> str:
        note = next((a for a in k.annotations if a.name == "name" and a.args), None)
        if note is not None and isinstance(note.args[0], A.StrLit):
            return note.args[0].value
        return _text(k.value)

    # ---- entries ------------------------------------------------------------------------------------------------

    def add_entries(self, table: TableObject, decl: A.TableDecl) -> None:
        assert decl.entries is not None
        explicit = [self._priority(e) for e in decl.entries]
        given = next((e for e in decl.entries if e.priority is not None), None)
        if given is not None and decl.const_entries:
            raise P4Error(given.pos, f"table {decl.name} has const entries: their order is their priority")
        if given is not None and decl.entries[0].priority is None:
            raise P4Error(decl.entries[0].pos, f"an entry of table {decl.name} has a priority: the first needs one too")
        if given is not None and all(k.match in ("exact", "lpm") for k in decl.keys):
            raise P4Error(given.pos, f"table {decl.name} has exact and lpm keys alone: its entries have no priority")
        largest_wins = True
        delta = 1
        if "largest_priority_wins" in decl.properties:
            largest_wins = bool(self.number(decl.properties["largest_priority_wins"].value))
        if "priority_delta" in decl.properties:
            delta = self.small(decl.properties["priority_delta"].value, "priority_delta")
        ordered = any(k.match in ("ternary", "range", "optional") for k in table.keys)
        priorities = _priorities(explicit, largest_wins, delta) if ordered else [0] * len(explicit)
        if largest_wins and given is not None:
            for entry, number in zip(decl.entries, _numbers(explicit, True, delta), strict=True):
                if number < 1:
                    raise P4Error(entry.pos, f"the priority of this entry of table {decl.name} would be {number}")
        for entry, priority in zip(decl.entries, priorities, strict=True):
            keys = [
                self.match_value(e, k) for e, k in zip(entry.keys, table.keys, strict=True) if k.match != "selector"
            ]
            action = next(i for i, a in enumerate(table.actions) if a.decl is entry.ref.decl)
            args = self.action_data(table.actions[action], entry.ref)
            table.entries.append(ConstEntry(keys, priority, action, args, entry.pos))

    def _priority(self, entry: A.EntryDecl) -> int | None:
        if entry.priority is not None:
            return self.small(entry.priority, "priority")
        note = next((a for a in entry.annotations if a.name == "priority" and a.args), None)
        if note is not None and isinstance(note.args[0], A.IntLit):
            return -self.checked_number(note.args[0])  # with the annotation, the smallest priority wins
        return None

    def match_value(self, e: A.Expr, key: Key) -> tuple[int, int]:
        """(value, mask), or (low, high) of a range."""
        ones = (1 << ir.bits_of(key.type)) - 1
        if isinstance(e, A.DontCare):
            if key.match == "exact":
                raise P4Error(e.pos, f"'_' for the exact key {key.name}")
            return (0, ones) if key.match == "range" else (0, 0)
        if isinstance(e, A.BinaryExpr) and e.op == "..":
            low, high = self.number(e.left), self.number(e.right)
            if key.match != "range":
                raise P4Error(e.pos, f"a range for the {key.match} key {key.name}")
            return low, high
        if isinstance(e, A.BinaryExpr) and e.op == "&&&":
            value, mask = self.number(e.left), self.number(e.right)
            if key.match == "lpm":
                if (mask ^ ones) & ((mask ^ ones) + 1):
                    raise P4Error(e.pos, f"{hex(mask)} is not a prefix, for the lpm key {key.name}")
            elif key.match != "ternary":
                raise P4Error(e.pos, f"a mask for the {key.match} key {key.name}")
            return value & mask, mask
        value = self.number(e) & ones
        return (value, value) if key.match == "range" else (value, ones)


def _numbers(explicit: list[int | None], largest_wins: bool, delta: int) -> list[int]:
    """Priorities as the program numbers them; entries without one continue from the one before."""
    out: list[int] = []
    for i, given in enumerate(explicit):
        if given is not None:
            out.append(given)
        elif i == 0:
            out.append((len(explicit) - 1) * delta + 1 if largest_wins else 1)
        else:
            out.append(out[-1] - delta if largest_wins else out[-1] + delta)
    return out


def _priorities(explicit: list[int | None], largest_wins: bool, delta: int) -> list[int]:
    """Priorities of entries, from 1 up, of which the larger wins (P4_16 specification)."""
    out = _numbers(explicit, largest_wins, delta)
    if not largest_wins:
        out = [-p for p in out]
    low = min(out, default=1)
    return [p - low + 1 for p in out] if low < 1 else out


def _external(e: A.MemberExpr) -> str:
    """The name of a field for the control plane."""
    t = e.base.type
    if isinstance(t, T.Struct):
        note = next(f for f in t.decl.fields if f.name == e.name).annotation("name")
        if note is not None and note.args and isinstance(note.args[0], A.StrLit):
            return note.args[0].value
    return e.name


def _text(e: A.Expr) -> str:
    """The text of a key expression, as p4c writes it into names."""
    match e:
        case A.NameExpr():
            return e.name
        case A.MemberExpr():
            name = _external(e)
            return name[1:] if name.startswith(".") else f"{_text(e.base)}.{name}"
        case A.IndexExpr():
            return f"{_text(e.base)}[{_text(e.index)}]"
        case A.SliceExpr():
            return f"{_text(e.base)}[{_text(e.hi)}:{_text(e.lo)}]"
        case A.CallExpr(builtin="isValid"):
            assert isinstance(e.function, A.MemberExpr)
            return f"{_text(e.function.base)}.$valid$"
        case A.IntLit():
            return {2: f"0b{e.value:b}", 8: f"0o{e.value:o}", 16: f"0x{e.value:x}"}.get(e.base, str(e.value))
        case A.BinaryExpr(op="&"):
            return f"{_text(e.left)} & {_text(e.right)}"
        case A.CastExpr() if e.to is None:
            return _text(e.operand)
    raise P4Error(e.pos, 'this key needs a name for the control plane: ... : exact @name("...")')
