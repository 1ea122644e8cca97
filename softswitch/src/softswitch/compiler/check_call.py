# SPDX-License-Identifier: Apache-2.0
"""Type checking of l-values and calls: functions, methods, constructors, apply(); overloads and type inference."""

from __future__ import annotations

from collections.abc import Sequence

from softswitch.compiler import ast as A
from softswitch.compiler import types as T
from softswitch.compiler.check_expr import ExprChecker
from softswitch.compiler.diagnostics import P4Error, nearest
from softswitch.compiler.resolve import Bindings

_SIZE_METHODS = ("minSizeInBits", "minSizeInBytes", "maxSizeInBits", "maxSizeInBytes")


class CallChecker(ExprChecker):
    """Checks l-values, calls and constructor calls, and finds which overload a call means."""

    # ---- l-values -----------------------------------------------------------------------------------------------

    def lvalue(self, e: A.Expr) -> None:
        """Raises P4Error unless `e` may be assigned to."""
        match e:
            case A.NameExpr(decl=A.VarDecl()):
                return
            case A.NameExpr(decl=A.Param() as p):
                if p.direction in ("out", "inout"):
                    return
                raise P4Error(e.pos, f"'{e.name}' is an 'in' parameter: it cannot be written" if p.direction == "in"
                              else f"'{e.name}' has no direction: it cannot be written")
            case A.MemberExpr():
                if isinstance(e.base.type, T.Stack) and e.name not in ("next", "last"):
                    raise P4Error(e.pos, f"'{e.name}' cannot be written")
                return self.lvalue(e.base)
            case A.IndexExpr():
                return self.lvalue(e.base)
            case A.SliceExpr():
                return self.lvalue(e.base)
        raise P4Error(e.pos, "this cannot be written to")

    # ---- calls --------------------------------------------------------------------------------------------------

    def check_call(self, e: A.CallExpr) -> None:
        named = self.type_named(e.function)
        if named is not None:
            self.check_constructor(e, named)
            return
        if isinstance(e.function, A.MemberExpr):
            self.check_method(e, e.function)
            return
        if not isinstance(e.function, A.NameExpr):
            raise P4Error(e.pos, "this cannot be called")
        decl = self.lookup(e.function.name, e.function.pos, e.function.absolute)
        if isinstance(decl, list):
            decl = self.overload(decl, e)
            self.bind_generic(e, decl, {}, self.function_result(decl))
            if decl.name == "static_assert" and decl.body is None:
                self.static_assert(e)
        elif isinstance(decl, A.ActionDecl):
            if self.where in ("parser", "function"):
                raise P4Error(e.pos, f"action {decl.name} cannot be called from a {self.where}")
            e.decl = decl
            self.bind(e, decl.params, decl.name)
            e.bound = self.check_args(decl.params, e.bound, decl.name)
            e.type = T.VOID
        else:
            raise P4Error(e.pos, f"'{e.function.name}' cannot be called")

    def static_assert(self, e: A.CallExpr) -> None:
        message = e.bound.get("message")
        if e.bound["check"].const is None:
            raise P4Error(e.pos, "static_assert of what is not known at compile time")
        if not e.bound["check"].const:
            raise P4Error(e.pos, f"static_assert failed{': ' + message.const if message is not None else ''}")
        e.const = True

    def function_result(self, decl: A.FunctionDecl) -> T.Type:
        return decl.result_type if decl.result_type is not None else T.VOID

    def overload(self, decls: list[A.FunctionDecl], e: A.CallExpr) -> A.FunctionDecl:
        """The overloaded declaration that accepts the number and names of this call's arguments."""
        names = {a.name for a in e.args if a.name is not None}
        for decl in decls:
            required = sum(p.default is None and not _optional(p) for p in decl.params)
            if required <= len(e.args) <= len(decl.params) and names <= {p.name for p in decl.params}:
                return decl
        takes = " or ".join(sorted({str(len(d.params)) for d in decls}))
        raise P4Error(e.pos, f"{decls[0].name} takes {takes} arguments, got {len(e.args)}")

    def check_method(self, e: A.CallExpr, function: A.MemberExpr) -> None:
        name = function.name
        sized = self.type_named(function.base)
        if sized is not None:
            if name in _SIZE_METHODS:
                self.size_method(e, sized, name)
                return
            if isinstance(sized, T.Declared) and name == "apply":  # Control.apply(...): an unnamed instance
                function.base.type = sized
                self.check_apply(e, sized)
                return
            raise P4Error(e.pos, f"type {sized} has no method '{name}'")
        base = function.base = self.expr(function.base)
        t = base.type
        if name in _SIZE_METHODS and not isinstance(t, T.Declared):
            self.size_method(e, t, name)
            return
        if isinstance(t, T.Struct | T.Stack):
            self.header_method(e, base, name)
            return
        if isinstance(t, T.Declared) and name == "apply":
            self.check_apply(e, t)
            return
        if isinstance(t, T.Declared) and t.kind == "extern":
            methods = [m for m in t.decl.methods if m.name == name]
            if not methods:
                known = [m.name for m in t.decl.methods if m.name != t.name]
                raise P4Error(e.pos, f"{t} has no method '{name}'{nearest(name, known)}")
            decl = self.overload(methods, e)
            self.bind_generic(e, decl, dict(t.bindings), self.function_result(decl))
            return
        raise P4Error(e.pos, f"a value of type {t} has no method '{name}'")

    def size_method(self, e: A.CallExpr, t: T.Type, name: str) -> None:
        if e.args or e.type_args:
            raise P4Error(e.pos, f"{name}() takes no arguments")
        low, high = T.sizes(t)
        bits = low if name.startswith("min") else high
        e.type, e.const = T.INFINT, bits if name.endswith("Bits") else (bits + 7) // 8
        e.builtin = name

    def header_method(self, e: A.CallExpr, base: A.Expr, name: str) -> None:
        e.builtin = name
        t = base.type
        header = isinstance(t, T.Struct) and t.kind in ("header", "header_union")
        if name == "isValid" and header and not e.args:
            e.type = T.BOOL
        elif name in ("setValid", "setInvalid") and header and not e.args:
            self.lvalue(base)
            if isinstance(t, T.Struct) and t.kind == "header_union" and name == "setValid":
                raise P4Error(e.pos, "a header_union is set valid through one of its headers")
            e.type = T.VOID
        elif name in ("push_front", "pop_front") and isinstance(t, T.Stack) and len(e.args) == 1:
            self.lvalue(base)
            count = self.constant(e.args[0].value)
            if count < 0:
                raise P4Error(e.pos, f"{name}({count}): expected a number that is not negative")
            e.type = T.VOID
        else:
            raise P4Error(e.pos, f"a value of type {t} has no method '{name}' with {len(e.args)} arguments")

    def check_apply(self, e: A.CallExpr, t: T.Declared) -> None:
        if self.where in ("action", "function"):
            raise P4Error(e.pos, f"apply() cannot be called from {self.where}s")
        e.builtin = "apply"
        e.decl = t.decl
        if t.kind == "table":
            if e.args:
                raise P4Error(e.pos, f"table {t.name}: apply() takes no arguments")
            e.type = T.OfTable("result", t.decl)
            return
        if t.kind not in ("control", "parser"):
            raise P4Error(e.pos, f"a {t.kind} has no apply()")
        decl: A.BlockDecl = t.decl
        self.bind(e, decl.params, decl.name)
        found: Bindings = {k: v for k, v in t.bindings.items() if not isinstance(v, T.TypeVar) and v != T.ANY}
        self.infer(e, decl.params, found, decl.name)
        e.type_values = {k.name: v for k, v in found.items()}
        e.type = T.VOID

    def check_constructor(self, e: A.CallExpr, t: T.Type) -> None:
        e.builtin = "new"
        if not isinstance(t, T.Declared):
            raise P4Error(e.pos, f"{t} has no constructor")
        decl = t.decl
        e.decl = decl
        if isinstance(decl, A.ExternDecl):
            ctors = [m for m in decl.methods if m.name == decl.name]
            if not ctors:
                raise P4Error(e.pos, f"extern {decl.name} has no constructor")
            params = self.overload(ctors, e).params
        else:
            params = decl.ctor_params
            if isinstance(decl, A.BlockDecl) and decl.is_type:
                raise P4Error(e.pos, f"{decl.kind} {decl.name} is a type without a body")
        self.bind(e, params, decl.name)
        found: Bindings = {k: v for k, v in t.bindings.items() if not isinstance(v, T.TypeVar) and v != T.ANY}
        self.infer(e, params, found, decl.name)
        args = tuple(found.get(self.variable(p), self.variable(p)) for p in decl.type_params)
        e.type = self.specialize(decl, args) if decl.type_params else t

    def bind(self, e: A.CallExpr, params: Sequence[A.Param], name: str) -> None:
        """Pairs arguments with parameters by position or by name, and adds defaults for the others."""
        bound: dict[str, A.Expr] = {}
        known = {p.name for p in params}
        if len({arg.name is None for arg in e.args}) > 1:
            raise P4Error(e.pos, f"{name}: either all arguments are named, or none")
        for i, arg in enumerate(e.args):
            if arg.name is None:
                if i >= len(params):
                    raise P4Error(arg.pos, f"{name} takes {len(params)} arguments, got {len(e.args)}")
                key = params[i].name
            else:
                key = arg.name
                if key not in known:
                    raise P4Error(arg.pos, f"{name} has no parameter '{key}'{nearest(key, known)}")
            if key in bound:
                raise P4Error(arg.pos, f"{name}: two arguments for '{key}'")
            bound[key] = arg.value
        for p in params:
            if p.name not in bound:
                if p.default is not None:
                    bound[p.name] = p.default
                elif not _optional(p):
                    raise P4Error(e.pos, f"{name}: no argument for parameter '{p.name}'")
        e.bound = bound

    def bind_generic(self, e: A.CallExpr, decl: A.FunctionDecl, found: Bindings, result: T.Type) -> None:
        e.decl = decl
        self.bind(e, decl.params, decl.name)
        if e.type_args:
            if len(e.type_args) != len(decl.type_params):
                want = len(decl.type_params)
                raise P4Error(e.pos, f"{decl.name} takes {want} type arguments, got {len(e.type_args)}")
            for param, syntax in zip(decl.type_params, e.type_args, strict=True):
                t = self.resolve(syntax)
                if t != T.ANY:
                    found[self.variable(param)] = t
        self.infer(e, decl.params, found, decl.name)
        for param in decl.type_params:
            if found.get(self.variable(param)) == T.INFINT and decl.name != "static_assert":
                wide = next(a for a in e.bound.values() if a.type == T.INFINT)
                raise P4Error(wide.pos, f"{decl.name}: a number of unknown width; give it one, as in 8w1")
            if self.variable(param) not in found:
                raise P4Error(e.pos, f"{decl.name}: cannot tell what type {param.name} is; write {decl.name}<...>(...)")
        e.type_values = {k.name: v for k, v in found.items()}
        e.type = self.substitute(result, found)

    def infer(self, e: A.CallExpr, params: Sequence[A.Param], found: Bindings, name: str) -> None:
        """Checks arguments against parameters whose types may contain variables, and binds these in `found`."""
        for p in params:
            arg = e.bound.get(p.name)
            if arg is None:
                continue
            # a number without a width does not bind the variable, since another argument may have a width
            formal = self.substitute(p.type, {k: v for k, v in found.items() if v != T.INFINT})
            checked = self.expr(arg, None if T.has_vars(formal) else formal)
            if isinstance(checked, A.DontCare) and checked.type == T.ANY:
                e.bound[p.name] = checked
                continue
            if T.has_vars(formal) and not self.unify(formal, checked.type, found):
                raise P4Error(arg.pos, f"{name}: parameter '{p.name}' is {formal}, got {checked.type}")
            e.bound[p.name] = checked
        e.bound = self.check_args(params, e.bound, name, found)

    def check_args(
        self, params: Sequence[A.Param], bound: dict[str, A.Expr], name: str, found: Bindings | None = None
    ) -> dict[str, A.Expr]:
        """Coerces arguments to the parameters' types and checks directions; the result is in the order of `bound`."""
        out: dict[str, A.Expr] = {}
        for p in params:
            arg = bound.get(p.name)
            if arg is None:
                continue
            t = self.substitute(p.type, found or {})
            checked = self.expr(arg, t)
            if p.direction in ("out", "inout"):
                if not isinstance(checked, A.DontCare):
                    self.lvalue(checked)
                    if checked.type != t and not isinstance(t, T.TypeVar):
                        raise P4Error(arg.pos, f"{name}: '{p.name}' is {p.direction} {t}, got {checked.type}")
                elif p.direction == "inout":
                    raise P4Error(arg.pos, f"{name}: '{p.name}' is inout: it needs a variable")
                else:
                    checked.type = t
                out[p.name] = checked
            else:
                out[p.name] = self.coerce_arg(checked, t, p, name)
        return {given: out[given] for given in bound if given in out}

    def coerce_arg(self, arg: A.Expr, t: T.Type, p: A.Param, name: str) -> A.Expr:
        if isinstance(t, T.Declared):
            self.check_block_arg(arg, t, p, name)
            return arg
        if isinstance(t, T.TypeVar):
            return arg
        try:
            return self.coerce(arg, t)
        except P4Error:
            raise P4Error(arg.pos, f"{name}: parameter '{p.name}' is {t}, got {arg.type}") from None

    def check_block_arg(self, arg: A.Expr, t: T.Declared, p: A.Param, name: str) -> None:
        """Checks an argument that is a parser, control, package or extern against the signature of the parameter."""
        got = arg.type
        if not isinstance(got, T.Declared) or got.kind != t.kind:
            raise P4Error(arg.pos, f"{name}: parameter '{p.name}' is a {t.kind} {t}, got {got}")
        if t.kind in ("parser", "control"):
            want, have = t.decl.params, got.decl.params
            if len(want) != len(have):
                raise P4Error(arg.pos, f"{name}: {got.name} has {len(have)} parameters, {t.name} needs {len(want)}")
            for w, h in zip(want, have, strict=True):
                wanted, given = self.substitute(w.type, t.bindings), self.substitute(h.type, got.bindings)
                same = wanted == given or T.has_vars(wanted) or T.has_vars(given)
                if w.direction != h.direction or not same:
                    have_, want_ = f"{h.direction} {given}".strip(), f"{w.direction} {wanted}".strip()
                    raise P4Error(arg.pos, f"{name}: parameter '{h.name}' of {got.name} is '{have_}', "
                                           f"{t.name} needs '{want_}'")
        elif got.decl is not t.decl:
            raise P4Error(arg.pos, f"{name}: parameter '{p.name}' is {t}, got {got}")


def _optional(p: A.Param) -> bool:
    """True if an argument for the parameter may be left out."""
    return p.annotation("optional") is not None
