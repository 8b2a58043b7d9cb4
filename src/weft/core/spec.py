"""The base of everything that people write in files: frozen, complete in its messages, with a published schema.

A component describes what can be written about it as a `Spec`; files compose specs. A rule that joins several fields is
a `Check` that names the fields it reads, so that it can still be tried when other fields of the same table are wrong:
every mistake in a file is reported at once. Reading files is `specfile`'s work.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError, core_schema

from weft.core import quantity
from weft.core.units import (
    BitsPerSecond,
    Bytes,
    Cents,
    Fit,
    FlopsPerSecond,
    Millijoules,
    Millimetres,
    Milliwatts,
    Picoseconds,
)


@dataclass(frozen=True)
class Quantity:
    """Marks a field that is written as text with a unit and kept as an integer."""

    dimension: quantity.Dimension
    """What kind of quantity it is."""
    at_least: int = 0
    """The smallest amount that makes sense, in base units."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Tell pydantic how to read and write the field."""
        return core_schema.no_info_plain_validator_function(
            self._read,
            serialization=core_schema.plain_serializer_function_ser_schema(self.dimension.format),
        )

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Describe the field as text with an example."""
        return {"type": "string", "title": self.dimension.name, "examples": [self.dimension.example]}

    def _read(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, str):
            problem = f"{value!r} has no unit; write a {self.dimension.name} as {self.dimension.example!r}"
            raise PydanticCustomError("quantity", "{problem}", {"problem": problem})
        try:
            amount = self.dimension.parse(value)
        except quantity.QuantityError as error:
            raise PydanticCustomError("quantity", "{problem}", {"problem": str(error)}) from None
        if amount < self.at_least:
            problem = f"{value!r} is too small; the least is {self.dimension.format(self.at_least)!r}"
            raise PydanticCustomError("quantity", "{problem}", {"problem": problem})
        return amount


Rate = Annotated[BitsPerSecond, Quantity(quantity.RATE, at_least=1)]
Size = Annotated[Bytes, Quantity(quantity.SIZE)]
Duration = Annotated[Picoseconds, Quantity(quantity.TIME)]
Power = Annotated[Milliwatts, Quantity(quantity.POWER)]
Energy = Annotated[Millijoules, Quantity(quantity.ENERGY)]
Length = Annotated[Millimetres, Quantity(quantity.LENGTH)]
FailureRate = Annotated[Fit, Quantity(quantity.FAILURE_RATE)]
Speed = Annotated[FlopsPerSecond, Quantity(quantity.SPEED, at_least=1)]
Price = Annotated[Cents, Quantity(quantity.MONEY)]


@dataclass(frozen=True)
class Check:
    """A rule over several fields of one table."""

    reads: tuple[str, ...]
    """The fields that it needs; the first one is blamed."""
    rule: Callable[[Any], str | None]
    """Given those fields as attributes, returns what is wrong and what would be right, or nothing."""

    def problem(self, readable: object) -> str | None:
        """Return what the rule says, or nothing where a field that it reads is wrong by itself.

        It is given these fields alone: a rule that reads another one fails at once, not where that one is missing.
        """
        if not all(hasattr(readable, name) for name in self.reads):
            return None
        return self.rule(SimpleNamespace(**{name: getattr(readable, name) for name in self.reads}))


class Spec(BaseModel):
    """A table in a file: frozen, no unknown keys, documented field by field, checked as a whole."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, strict=True)

    checks: ClassVar[tuple[Check, ...]] = ()
    """Rules that join several fields."""

    @model_validator(mode="wrap")
    @classmethod
    def _with_checks(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        errors: list[InitErrorDetails] = []
        made: Self | None = None
        try:
            made = handler(data)
        except ValidationError as error:
            errors = [_detail(line) for line in error.errors()]
        readable = made if made is not None else _valid_fields(cls, data)
        for check in cls.checks:
            if (problem := check.problem(readable)) is not None:
                cause = PydanticCustomError("check", "{problem}", {"problem": problem})
                errors.append(InitErrorDetails(type=cause, loc=(check.reads[0],), input=None))
        if errors:
            raise ValidationError.from_exception_data(cls.__name__, errors)
        assert made is not None
        return made

    def as_written(self) -> dict[str, Any]:
        """Return the spec as plain values in the form in which a file holds it."""
        return self.model_dump(mode="json", exclude_none=True)


def _valid_fields(cls: type[Spec], data: Any) -> SimpleNamespace:
    """Return those fields of `data` that are right by themselves, defaults included."""
    fields = SimpleNamespace()
    if not isinstance(data, Mapping):
        return fields
    for name, info in cls.model_fields.items():
        if name not in data:
            if not info.is_required():
                setattr(fields, name, info.get_default(call_default_factory=True, validated_data={}))
            continue
        # The metadata (Annotated constraints and readers) is a part of what makes a field right.
        whole: Any = cast("Any", Annotated)[(info.annotation, *info.metadata)] if info.metadata else info.annotation
        try:
            setattr(fields, name, TypeAdapter(whole, config=None).validate_python(data[name]))
        except ValidationError:
            continue
    return fields


def _detail(line: Any) -> InitErrorDetails:
    """Return one reported error in the form in which it can be raised again."""
    if line["type"] in ("quantity", "check"):
        cause: Any = PydanticCustomError(line["type"], "{problem}", {"problem": line["msg"]})
    else:
        cause = line["type"]
    return InitErrorDetails(type=cause, loc=line["loc"], input=line["input"], ctx=line.get("ctx") or {})
