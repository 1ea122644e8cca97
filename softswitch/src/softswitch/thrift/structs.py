# SPDX-License-Identifier: Apache-2.0
"""Classes of the types in interface.py, as Apache Thrift's library reads and writes them.

    types = TYPES["standard"]
    types.BmMatchParamLPM(b"\\x0a\\0\\0\\0", 8)           # a struct: fields by place or by name, None where not given
    types.TableOperationErrorCode.TABLE_FULL             # an enum: a class of numbers
    raise types.InvalidTableOperation(code=1)            # an exception
    types.Client(protocol).bm_mt_get_num_entries(0, "t") # a service's client

The names and shapes are those of what Thrift's compiler generates, because scripts for BMv2 import them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from thrift.protocol.TBase import TBase
from thrift.Thrift import TApplicationException, TException, TMessageType, TType

from softswitch.thrift.interface import MODULES, Method, Module, ThriftField

_BASIC = {
    "bool": (TType.BOOL, None),
    "i16": (TType.I16, None),
    "i32": (TType.I32, None),
    "i64": (TType.I64, None),
    "double": (TType.DOUBLE, None),
    "string": (TType.STRING, "UTF8"),
    "binary": (TType.STRING, "BINARY"),
}


class _Raised(TBase, TException):  # type: ignore[misc]  # the library has no types
    """The base of the services' exceptions."""

    __hash__ = TException.__hash__


def _spec(type_: str, classes: dict[str, Any]) -> tuple[int, Any]:
    """A type as the library describes it: its number, and what there is to know about its parts."""
    if type_ in _BASIC:
        return _BASIC[type_]
    if type_.startswith("list<"):
        number, inner = _spec(type_[5:-1], classes)
        return TType.LIST, (number, inner, False)
    if type_.startswith("map<"):
        key, value = (_spec(part, classes) for part in type_[4:-1].split(","))
        return TType.MAP, (*key, *value, False)
    return TType.STRUCT, (classes[type_], classes[type_].thrift_spec)


def _thrift_spec(fields: tuple[ThriftField, ...], classes: dict[str, Any], first: int = 1) -> tuple[Any, ...]:
    spec: list[Any] = [None] * first
    for place, field in enumerate(fields, start=first):
        number, inner = _spec(field.type, classes)
        spec.append((place, number, field.name, inner, None))
    return tuple(spec)


def _struct(
    name: str, fields: tuple[ThriftField, ...], classes: dict[str, Any], *, base: type = TBase, first: int = 1
) -> Any:
    """A class with these fields, whose constructor takes them by place or by name."""
    names = tuple(field.name for field in fields)
    signature = inspect.Signature([
        inspect.Parameter(one, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None) for one in names
    ])

    def __init__(self: Any, *given: Any, **named: Any) -> None:
        bound = signature.bind(*given, **named)
        bound.apply_defaults()
        for one, value in bound.arguments.items():
            setattr(self, one, value)

    return type(name, (base,), {
        "__init__": __init__,
        "__slots__": names,
        "__doc__": f"{name}({', '.join(f'{field.type} {field.name}' for field in fields)})",
        "thrift_spec": _thrift_spec(fields, classes, first),
    })


def _enum(name: str, numbers: dict[str, int]) -> Any:
    return type(name, (), {
        **numbers,
        "_NAMES_TO_VALUES": dict(numbers),
        "_VALUES_TO_NAMES": {number: called for called, number in numbers.items()},
    })


def _caller(method: Method, arguments: Any, result: Any) -> Callable[..., Any]:
    """The client's side of a method."""
    names = [field.name for field in method.arguments]

    def call(self: Any, *given: Any, **named: Any) -> Any:
        protocol = self.protocol
        self.sequence += 1
        protocol.writeMessageBegin(method.name, TMessageType.CALL, self.sequence)
        arguments(*given, **named).write(protocol)
        protocol.writeMessageEnd()
        protocol.trans.flush()
        _, kind, _ = self.input.readMessageBegin()
        if kind == TMessageType.EXCEPTION:
            refused = TApplicationException()
            refused.read(self.input)
            self.input.readMessageEnd()
            raise refused
        answer = result()
        answer.read(self.input)
        self.input.readMessageEnd()
        if method.error and answer.ouch is not None:
            raise answer.ouch
        if method.result == "void":
            return None
        if answer.success is None:
            raise TApplicationException(TApplicationException.MISSING_RESULT, f"{method.name}: no result")
        return answer.success

    call.__name__ = method.name
    call.__doc__ = f"{method.result} {method.name}({', '.join(names)})"
    return call


def _build(module: Module, shared: dict[str, Any]) -> SimpleNamespace:
    classes: dict[str, Any] = dict(shared)
    made: dict[str, Any] = {}
    for name, numbers in module.enums.items():
        made[name] = _enum(name, numbers)
    for name, fields in module.structs.items():
        made[name] = classes[name] = _struct(name, fields, classes)
    for name, fields in module.exceptions.items():
        made[name] = classes[name] = _struct(name, fields, classes, base=_Raised)

    def client_init(self: Any, iprot: Any, oprot: Any = None) -> None:
        self.input = iprot
        self.protocol = iprot if oprot is None else oprot
        self.sequence = 0

    calls: dict[str, Any] = {"__init__": client_init, "__doc__": f"A client of BMv2's service {module.service}."}
    methods = {}
    for method in module.methods:
        arguments = _struct(f"{method.name}_args", method.arguments, classes)
        fields = (ThriftField(method.result, "success"),) if method.result != "void" else ()
        fields += (ThriftField(method.error, "ouch"),) if method.error else ()
        result = _struct(f"{method.name}_result", fields, classes, first=0 if method.result != "void" else 1)
        calls[method.name] = _caller(method, arguments, result)
        methods[method.name] = (method, arguments, result)
    return SimpleNamespace(**made, Client=type("Client", (), calls), methods=methods, names=tuple(made))


TYPES: dict[str, SimpleNamespace] = {module.name: _build(module, {}) for module in MODULES}
"""Module name -> its enums, structs and exceptions, its Client, and `methods`, which has each method's description and
the classes of its arguments and result."""
