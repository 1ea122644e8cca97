# SPDX-License-Identifier: Apache-2.0
"""v1model's externs: what each call does, in terms of IR and of the runtime's operations (ir.Extern)."""

from __future__ import annotations

from typing import Any

from softswitch.compiler import ast as A
from softswitch.compiler import ir, stages
from softswitch.compiler import types as T
from softswitch.compiler.architecture import STANDARD
from softswitch.compiler.diagnostics import P4Error, Unsupported
from softswitch.compiler.ir import U32
from softswitch.compiler.lower_call import SliceTarget, calls_in
from softswitch.compiler.lower_expr import has_effects, leaves
from softswitch.compiler.lower_parser import ParserLowering
from softswitch.compiler.objects import Digest, ExternObject, TableObject

U64 = T.Bits(64)
DROP_PORT = 511
NO_LIST = 0xFFFFFFFF
CSUM16 = 6  # HashAlgorithm.csum16
FUNCTIONS = {
    "verify", "assert", "assume", "log_msg", "mark_to_drop", "truncate", "random", "hash", "digest",
    "clone", "clone3", "clone_preserving_field_list", "resubmit", "resubmit_preserving_field_list",
    "recirculate", "recirculate_preserving_field_list",
    "verify_checksum", "verify_checksum_with_payload", "update_checksum", "update_checksum_with_payload",
}
"""The extern functions of core.p4 and v1model.p4; a program may declare others, but not call them."""


class ExternLowering(ParserLowering):
    """Lowers calls of v1model's functions and of methods of its externs."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.standard = ir.Var(U32, "")  # the standard metadata
        self.meters_read: set[int] = set()  # ids of the direct meters that any action reads
        self.meter_results: dict[int, str] = {}  # id of a direct meter -> the place that its colour goes to

    def call_extern(self, e: A.CallExpr) -> Any:
        """Lowers a call of an extern. Where evaluating an argument has effects, all are evaluated first, in order."""
        if not any(map(has_effects, e.bound.values())):
            return self._call_extern(e)
        outputs = {p.name for p in e.decl.params if p.direction in ("out", "inout")}
        before = dict(self.known)
        for name, arg in e.bound.items():
            if name in outputs:
                self.find(arg)
            else:
                self.evaluate(arg)
        try:
            return self._call_extern(e)
        finally:
            self.known = before

    def find(self, e: A.Expr) -> None:
        """Finds the place of an out argument now."""
        if isinstance(e, A.DontCare):
            return
        target = self.target(e)
        while isinstance(e, A.SliceExpr):
            e = e.base
        self.known[id(e)] = self.settled(target.whole if isinstance(target, SliceTarget) else target)

    def evaluate(self, e: A.Expr) -> None:
        """Evaluates an in argument now; of a list, each of its parts."""
        match e:
            case A.ListExpr():
                for item in e.items:
                    self.evaluate(item)
            case A.StructExpr():
                for _, item in e.fields:
                    self.evaluate(item)
            case A.CastExpr(operand=A.ListExpr() | A.StructExpr()):
                self.evaluate(e.operand)
            case _:
                # what has a constant value, or no value at all, is looked at by the extern itself
                if e.const is None and not isinstance(e, A.DontCare | A.StrLit | A.DefaultValue | A.InvalidHeader):
                    self.known[id(e)] = self.temp(self.expr(e))

    def _call_extern(self, e: A.CallExpr) -> Any:
        if isinstance(e.function, A.MemberExpr):
            assert isinstance(e.function.base.type, T.Declared)
            extern = e.function.base.type.name
            stages.check_method(self.function.name, extern, e.pos)
            if extern == "packet_in":
                return self.packet_in(e, e.function.name)
            if extern == "packet_out":
                self.emit_headers(e)
                return None
            base = e.function.base
            found = self.bindings.get(id(base.decl)) if isinstance(base, A.NameExpr) else None
            if not isinstance(found, ExternObject):
                raise P4Error(e.pos, f"{extern} cannot be used here")
            handler = getattr(self, f"on_{extern}_{e.function.name}", None)
            if handler is None:
                raise Unsupported(e.pos, f"{extern}.{e.function.name} is not supported")
            return handler(e, found)
        self.program.calls_externs = self.program.calls_externs or not self.in_parser
        handler = getattr(self, f"on_{e.decl.name}", None)
        if handler is None or e.decl.name not in FUNCTIONS:
            raise Unsupported(e.pos, f"extern function '{e.decl.name}' is none of core.p4 and v1model.p4, the "
                                     "only ones supported")
        stages.check_function(self.function.name, e.decl.name, e.pos)
        return handler(e)

    # ---- helpers ------------------------------------------------------------------------------------------------

    def args(self, e: A.CallExpr, *names: str) -> list[ir.Value]:
        """Scalar arguments, evaluated in order."""
        chosen = [e.bound[n] for n in names]
        return [self.saved(a, *chosen[i + 1 :]) for i, a in enumerate(chosen)]

    def give(self, e: A.CallExpr, name: str, value: ir.Value) -> None:
        """Writes an out argument."""
        target = e.bound[name]
        if isinstance(target, A.DontCare):
            return
        where = self.target(target)
        if isinstance(where, ir.LValue):
            self.emit(ir.Assign(where, self.cast(value, where.type)))
        else:
            where(self.cast(value, self.type(target.type)))

    def result_of(self, op: str, t: T.Bits, args: list[ir.Value], info: Any = None) -> ir.Var:
        var = self.local(op, t)
        self.temps.add(id(var))
        self.emit(ir.Extern(op, var, args, info))
        return var

    def emit_headers(self, e: A.CallExpr) -> None:
        arg = e.bound["hdr"]
        if isinstance(arg, A.ListExpr) and not isinstance(arg.type, T.Struct):
            for item in arg.items:
                self.emit_value(self.expr(item), item)
            return
        if isinstance(arg, A.ListExpr | A.StructExpr | A.InvalidHeader | A.DefaultValue):
            raise P4Error(arg.pos, "only headers can be emitted, from a place that has a name")
        self.emit_value(self.expr(arg), arg)

    def emit_value(self, value: ir.Value, e: A.Expr) -> None:
        if not isinstance(value, ir.LValue):
            raise P4Error(e.pos, "only headers can be emitted, from a place that has a name")
        match value.type:
            case ir.StackType() as arr:
                for i in range(arr.size):
                    self.emit_value(ir.StackElement(arr.item, value, ir.const(i, U32)), e)
            case ir.RecordType(kind="header"):
                self.emit(ir.Emit(value))
            case ir.RecordType() as rec:
                for name, t in rec.fields.items():
                    self.emit_value(ir.Field(t, value, name), e)
            case _:
                raise P4Error(e.pos, "only headers can be emitted")

    def standard_field(self, name: str) -> ir.Field:
        assert isinstance(self.standard.type, ir.RecordType)
        return ir.Field(self.standard.type.fields.get(name) or STANDARD[name], self.standard, name)  # type: ignore[arg-type]

    # ---- parser and program checks ------------------------------------------------------------------------------

    def on_verify(self, e: A.CallExpr) -> None:
        check, error = self.args(e, "check", "toSignal")
        self.emit(ir.If(self.un("!", check), [ir.ParserError(error, pos=e.pos)], []))

    def on_assert(self, e: A.CallExpr) -> None:
        (check,) = self.args(e, "check")
        failed: list[ir.Instruction] = []
        with self.into(failed):
            self.emit(ir.Extern("assert_failed", None, [], str(e.pos)))
        self.emit(ir.If(self.un("!", check), failed, []))

    on_assume = on_assert

    def on_log_msg(self, e: A.CallExpr) -> None:
        message = e.bound["msg"].const
        if not isinstance(message, str):
            raise P4Error(e.pos, "log_msg needs a literal string")
        if "data" in e.bound and T.fields_of(self.actual(e.bound["data"].type)) is None:
            raise P4Error(e.bound["data"].pos, "the values of log_msg must be a list: { ... }")
        values = self.flatten(e.bound["data"]) if "data" in e.bound else []
        if message.count("{}") != len(values):
            raise P4Error(e.pos, f"log_msg: {message.count('{}')} places for {len(values)} values")
        self.emit(ir.Extern("log", None, values, message))

    # ---- drop, clone, resubmit, recirculate ------------------------------------------------------------------

    def on_mark_to_drop(self, e: A.CallExpr) -> None:
        target: ir.Value = self.standard
        if e.bound:
            target = self.expr(e.bound["standard_metadata"])
        else:
            self.errors.warn(e.pos, "mark_to_drop() without an argument is old, and p4c refuses it for BMv2: write "
                                    "mark_to_drop(standard_metadata)")
        assert isinstance(target, ir.LValue)
        assert isinstance(target.type, ir.RecordType)
        for name, value in (("egress_spec", DROP_PORT), ("mcast_grp", 0)):
            if target is self.standard or name in target.type.fields:
                t = target.type.fields.get(name) or self.standard_field(name).type
                self.emit(ir.Assign(ir.Field(t, target, name), ir.const(value, t)))

    def on_truncate(self, e: A.CallExpr) -> None:
        self.emit(ir.Extern("truncate", None, self.args(e, "length")))

    def field_list(self, e: A.CallExpr) -> int:
        index = e.bound["index"]
        number = self.number(index)
        return number if number in self.program.field_lists else NO_LIST

    def data_list(self, e: A.CallExpr) -> int:
        """A list for the deprecated clone3(…, data) and relatives: keeps those of the fields that are metadata."""
        paths: list[tuple[str, ...]] = []
        for leaf in self.flatten(e.bound["data"]) if "data" in e.bound else []:
            path: list[str] = []
            lv: ir.Value = leaf
            while isinstance(lv, ir.Field):
                path.append(lv.name)
                lv = lv.base
            if isinstance(lv, ir.Var) and lv.storage == "state" and lv.name == "meta":
                paths.append(tuple(reversed(path)))
        if not paths:
            return NO_LIST
        number = 256 + len(self.program.field_lists)
        self.program.field_lists[number] = paths
        return number

    def check_clone(self, e: A.CallExpr) -> None:
        kind = e.bound["type"]
        if kind.const is not None:
            stages.check_clone(self.function.name, ("I2E", "E2E")[kind.const], e.pos)

    def on_clone(self, e: A.CallExpr) -> None:
        self.check_clone(e)
        self.emit(ir.Extern("clone", None, self.args(e, "session"), NO_LIST))

    def on_clone3(self, e: A.CallExpr) -> None:
        self.check_clone(e)
        self.emit(ir.Extern("clone", None, self.args(e, "session"), self.data_list(e)))

    def on_clone_preserving_field_list(self, e: A.CallExpr) -> None:
        self.check_clone(e)
        self.emit(ir.Extern("clone", None, self.args(e, "session"), self.field_list(e)))

    def on_resubmit(self, e: A.CallExpr) -> None:
        self.emit(ir.Extern("resubmit", None, [], self.data_list(e)))

    def on_resubmit_preserving_field_list(self, e: A.CallExpr) -> None:
        self.emit(ir.Extern("resubmit", None, [], self.field_list(e)))

    def on_recirculate(self, e: A.CallExpr) -> None:
        self.emit(ir.Extern("recirculate", None, [], self.data_list(e)))

    def on_recirculate_preserving_field_list(self, e: A.CallExpr) -> None:
        self.emit(ir.Extern("recirculate", None, [], self.field_list(e)))

    # ---- arrays -------------------------------------------------------------------------------------------------

    def on_register_read(self, e: A.CallExpr, reg: ExternObject) -> None:
        (index,) = self.args(e, "index")
        where = self.target(e.bound["result"]) if not isinstance(e.bound["result"], A.DontCare) else None
        if isinstance(where, ir.LValue) and where.type == reg.type:
            self.emit(ir.Extern("register_read", where, [index], reg))
            return
        value = self.result_of("register_read", reg.type, [index], reg)
        if where is not None:
            self.give(e, "result", value)

    def on_register_write(self, e: A.CallExpr, reg: ExternObject) -> None:
        index, value = self.args(e, "index", "value")
        self.emit(ir.Extern("register_write", None, [index, self.cast(value, reg.type)], reg))

    def on_counter_count(self, e: A.CallExpr, counter: ExternObject) -> None:
        self.emit(ir.Extern("count", None, self.args(e, "index"), counter))

    def on_direct_counter_count(self, e: A.CallExpr, counter: ExternObject) -> None:
        """Nothing: BMv2 counts every hit of the table."""

    def on_meter_execute_meter(self, e: A.CallExpr, meter: ExternObject) -> None:
        self.give(e, "result", self.result_of("meter", U32, self.args(e, "index"), meter))

    def on_direct_meter_read(self, e: A.CallExpr, meter: ExternObject) -> None:
        """Nothing: where the meter's table hits, the result is there before any action runs (read_direct_meter)."""
        if meter.table is None:
            raise P4Error(e.pos, f"direct meter {meter.name} belongs to no table")
        self.meters_read.add(id(meter))
        if isinstance(e.bound["result"], A.DontCare):
            return
        with self.into([]):
            target = self.target(e.bound["result"])
        place = str(target.value if isinstance(target, SliceTarget) else target)
        if self.meter_results.setdefault(id(meter), place) != place:
            raise P4Error(e.pos, f"direct meter {meter.name}: this is read to {place}, but to "
                                 f"{self.meter_results[id(meter)]} before; all reads need the same place")

    def read_direct_meter(self, table: TableObject, entry: str) -> None:
        """Updates the direct meter on a hit of a table, before its action. As in v1model, the meter is updated whether
        or not an action reads it; and as in BMv2, the colour goes to the variable that the meter is read to, also for
        actions that do not read it. Without a hit nothing is written, and nothing when an action of this table runs for
        another one."""
        reads = [call for action in table.actions for call in calls_in(action.decl.body)
                 if isinstance(call.function, A.MemberExpr) and call.function.name == "read"
                 and self.bindings.get(id(getattr(call.function.base, "decl", None))) is table.meter]
        if reads:
            self.give(reads[0], "result", self.result_of("direct_meter", U32, [], entry))

    # ---- functions ----------------------------------------------------------------------------------------------

    def on_random(self, e: A.CallExpr) -> None:
        low, high = (self.cast(a, U64) for a in self.args(e, "lo", "hi"))
        self.give(e, "result", self.result_of("random", U64, [low, high]))

    def on_hash(self, e: A.CallExpr) -> None:
        algorithm = e.bound["algo"].const
        if algorithm is None:
            raise P4Error(e.bound["algo"].pos, "the hash algorithm must be known at compile time")
        if T.fields_of(self.actual(e.bound["data"].type)) is None:
            raise P4Error(e.bound["data"].pos, "the data of a hash must be a list: { ... }")
        base, limit = (self.cast(self.expr(e.bound[n]), U64) for n in ("base", "max"))
        data = self.flatten(e.bound["data"])
        if algorithm in (1, 3):  # a custom CRC: the control plane gives each call parameters of its own
            number = self.program.custom_crcs.setdefault((e.pos.file, e.pos.line, e.pos.col),
                                                         len(self.program.custom_crcs) + 1)
            algorithm |= number << 8 if number < 256 else 0
        self.give(e, "result", self.result_of("hash", U64, [base, limit, *data], algorithm))

    def on_digest(self, e: A.CallExpr) -> None:
        data = e.bound["data"]
        t = self.actual(data.type)
        if T.is_header(t):
            raise P4Error(data.pos, f"a digest has a struct or list, not {t}, which is a header")
        values = self.flatten(data)
        for v in values:
            if not ir.is_scalar(v.type):
                raise Unsupported(data.pos, "a digest of a varbit is not supported")
        digest = next((d for d in self.program.digests if d.type is t or d.type == t), None)
        if digest is None:
            name = t.name if isinstance(t, T.Struct) else f"digest_{len(self.program.digests)}"
            fields: list[tuple[str, Any]] = [(f"f{i}", v.type) for i, v in enumerate(values)]
            if isinstance(t, T.Struct):
                rec = self.type(t)
                assert isinstance(rec, ir.RecordType)
                fields = [(".".join(path), leaf) for path, leaf in ir.scalar_fields(rec)]
            digest = Digest(name, len(self.program.digests), t, fields)
            self.program.digests.append(digest)
        digest.places.append((self.function.name, self.action))
        self.emit(ir.Extern("digest", None, values, digest))

    def checksum(self, e: A.CallExpr, *, verify: bool, payload: bool) -> None:
        condition = self.expr(e.bound["condition"])
        self.note("checksum", "verify" if verify else "update", value=condition)
        body: list[ir.Instruction] = []
        with self.into(body):
            algorithm = e.bound["algo"].const
            if algorithm is None:
                raise P4Error(e.bound["algo"].pos, "the checksum algorithm must be known at compile time")
            data = self.flatten(e.bound["data"])
            for value in data:
                if not isinstance(value, ir.Const) and (not isinstance(value, ir.LValue) or id(value) in self.temps):
                    raise Unsupported(e.bound["data"].pos, "the data of a checksum are fields and constants: BMv2 "
                                                           "computes nothing there")
            if payload and algorithm != CSUM16:
                raise Unsupported(e.pos, "a checksum with payload is supported for csum16 alone")
            given = e.bound["checksum"]
            value = self.result_of("checksum", U64, data, (algorithm, payload))
            if verify:
                have = self.expr(given)
                self.note("given", value=have)
                wrong = self.un("!", self.equal(self.cast(value, U64), self.cast(have, U64)))
                header = have.base if isinstance(have, ir.Field) else None
                kind = header.type.kind if header is not None and isinstance(header.type, ir.RecordType) else ""
                if header is not None and kind == "header":
                    wrong = self.bin("&&", self.valid(header), wrong, T.BOOL)
                flag = self.standard_field("checksum_error")
                self.emit(ir.If(wrong, [ir.Assign(flag, ir.const(1, flag.type), pos=e.pos)], []))
            else:
                where = self.target(given)
                whole = ir.root(where) if isinstance(where, ir.LValue) else None
                if not isinstance(whole, ir.Var) or whole.storage != "state":
                    raise P4Error(given.pos, "a checksum is written to a field of a header or of the metadata")
                self.give(e, "checksum", value)
        self.emit(ir.If(condition, body, []))

    def on_verify_checksum(self, e: A.CallExpr) -> None:
        self.checksum(e, verify=True, payload=False)

    def on_verify_checksum_with_payload(self, e: A.CallExpr) -> None:
        self.checksum(e, verify=True, payload=True)

    def on_update_checksum(self, e: A.CallExpr) -> None:
        self.checksum(e, verify=False, payload=False)

    def on_update_checksum_with_payload(self, e: A.CallExpr) -> None:
        self.checksum(e, verify=False, payload=True)


__all__ = ["ExternLowering", "leaves"]
