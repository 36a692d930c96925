# SPDX-License-Identifier: Apache-2.0
"""`@dataclass` that compiles its methods when they are needed.

The standard one compiles five methods of each class while its module is imported, which takes a good part of
the time of a small command. A command imports many records, makes some, and compares or prints hardly any.
This one makes the class with its slots at once, `__init__` with the first instance, and lets the standard one
make the rest if it is asked for. Types are checked as those of the standard one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import replace as replace
else:
    from _thread import RLock

    _LOCK = RLock()
    _UNSET = object()
    _WHOLE = (
        "__repr__",
        "__eq__",
        "__hash__",
        "__dataclass_fields__",
        "__dataclass_params__",
        "__match_args__",
    )
    _METHODS = ("__repr__", "__eq__", "__hash__")

    def dataclass(cls: type | None = None, /, **how: Any) -> Any:
        """As dataclasses.dataclass. Frozen ones with slots are completed when it is needed."""
        if cls is None:
            return lambda each: dataclass(each, **how)
        if how == {"frozen": True, "slots": True} and _is_simple(cls):
            return _Record(cls).made
        import dataclasses

        return dataclasses.dataclass(cls, **how)

    def replace(record: Any, /, **changes: Any) -> Any:
        """As dataclasses.replace, without asking for the fields of a record."""
        if not hasattr(record, "__record__"):
            import dataclasses

            return dataclasses.replace(record, **changes)
        kept = {name: getattr(record, name) for name in record.__record__.defaults if name not in changes}
        return type(record)(**kept, **changes)

    def _is_simple(cls: type) -> bool:
        """Whether all of its fields are arguments in their order, as are those that it inherits."""
        fields = [value for value in cls.__dict__.values() if type(value).__name__ == "Field"]
        inherits = [base for base in cls.__mro__[1:] if "__dataclass_fields__" in base.__dict__]
        are_records = all("__record__" in base.__dict__ for base in inherits)
        return are_records and all(field.init and field.kw_only is not True for field in fields)

    class _Record:
        """A class whose methods are to come. The class as it was written stays behind the one with slots: the
        standard dataclass completes that one, and its methods are moved.
        """

        def __init__(self, written: type) -> None:
            self._written, self._is_whole = written, False
            kinds = {name: str(kind) for name, kind in written.__annotations__.items()}
            names = [name for name, kind in kinds.items() if "ClassVar" not in kind]
            self.defaults = {name: written.__dict__.get(name, _UNSET) for name in names}
            for base in written.__mro__[1:]:
                if "__record__" in base.__dict__:
                    self.defaults = base.__record__.defaults | self.defaults
            inherited = {slot for base in written.__mro__[1:] for slot in getattr(base, "__slots__", ())}
            left_out = {*names, "__dict__", "__weakref__"}
            space = {name: value for name, value in written.__dict__.items() if name not in left_out}
            self._moved = [name for name in _WHOLE if name not in _METHODS or name not in space]
            space |= {name: _Later(name, self.complete) for name in self._moved}
            space |= {"__setattr__": _refuse, "__delattr__": _refuse}
            space |= {"__getstate__": _state, "__setstate__": _set_state}
            space |= {"__init__": _Later("__init__", self.with_init), "__record__": self}
            space["__slots__"] = tuple(name for name in names if name not in inherited)
            self.made: Any = type(written)(written.__name__, written.__bases__, space)

        def with_init(self) -> None:
            """Compile what makes an instance."""
            space, takes, does = {"_set": object.__setattr__, "_unset": _UNSET}, ["self"], []
            for name, default in self.defaults.items():
                value = name
                if default is not _UNSET and type(default).__name__ == "Field":
                    space[f"_make_{name}"], default = default.default_factory, _UNSET
                    takes.append(f"{name}=_unset")
                    value = f"_make_{name}() if {name} is _unset else {name}"
                elif default is not _UNSET:
                    space[f"_of_{name}"] = default
                    takes.append(f"{name}=_of_{name}")
                else:
                    takes.append(name)
                does.append(f"_set(self, {name!r}, {value})")
            if hasattr(self.made, "__post_init__"):
                does.append("self.__post_init__()")
            exec(f"def __init__({', '.join(takes)}):\n " + "\n ".join(does or ["pass"]), space)
            space["__init__"].__qualname__ = f"{self.made.__qualname__}.__init__"
            self.made.__init__ = space["__init__"]

        def complete(self) -> None:
            """Let the standard dataclass make what is left."""
            with _LOCK:
                if not self._is_whole:
                    import dataclasses

                    whole = dataclasses.dataclass(frozen=True)(self._written)
                    for name in self._moved:
                        setattr(self.made, name, whole.__dict__[name])
                    self.made.__doc__, self._is_whole = whole.__doc__, True

    class _Later:
        """Stands for what a class will have, until it is asked for."""

        def __init__(self, name: str, make: Any) -> None:
            self._name, self._make = name, make

        def __get__(self, instance: object, owner: type) -> Any:
            self._make()
            return getattr(owner if instance is None else instance, self._name)

    def _refuse(self: object, name: str, *_: object) -> None:
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot change field {name!r}")

    def _state(self: Any) -> list[Any]:
        return [getattr(self, name) for name in self.__record__.defaults]

    def _set_state(self: Any, state: list[Any]) -> None:
        for name, value in zip(self.__record__.defaults, state, strict=True):
            object.__setattr__(self, name, value)
