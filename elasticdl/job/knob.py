"""How a knob of a job is declared: what its flag, its YAML key, the help and the reference page need."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypedDict, Union, Unpack, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from elasticdl.job.resources import PrioritySpec, ResourceSpec, VolumeSpec
from elasticdl.job.values import spell_pairs

Command = Literal["train", "evaluate", "predict"]
COMMANDS: tuple[Command, ...] = ("train", "evaluate", "predict")
TRAIN: tuple[Command, ...] = ("train",)
BY_HAND: tuple[Command, ...] = ()  # only for a master or worker that the user starts

Kind = Literal["true|false", "choice", "whole number", "number", "resources", "pairs", "volumes", "text"]


class KnobGroup(BaseModel):
    """A group of knobs: a mixin of JobSpec. Its title heads the group in the help and on the reference page."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True, use_attribute_docstrings=False)
    title: ClassVar[str] = ""


class _Said(TypedDict, total=False):
    """What a declaration may give besides the default value and the help."""

    metavar: str
    aliases: tuple[str, ...]
    commands: tuple[Command, ...]
    common: bool  # shown by --help
    # The feature, where this release does not have it yet (for some values only: value -> feature): asking for it is
    # refused by name at run time, with the remedy.
    later: str | Mapping[str, str]
    remedy: str
    local: str  # why it changes nothing for processes on this machine; printed in a note
    gone: str  # what replaced it, where it is no longer used; printed in a note
    separator: str
    choices: Iterable[str]  # the values that a text may have, where its type does not name them


def knob(default: Any, help: str, **said: Unpack[_Said]) -> Any:
    """Declare a knob."""
    return Field(default, description=help, json_schema_extra={"knob": said})  # type: ignore[dict-item]


@dataclass(frozen=True)
class Knob:
    """A declared knob, ready to be read by the parser, the help and the reference page."""

    name: str
    group: str
    help: str
    default: Any
    kind: Kind
    choices: tuple[str, ...]
    metavar: str
    aliases: tuple[str, ...] = ()
    commands: tuple[str, ...] = COMMANDS
    common: bool = False
    later: str | Mapping[str, str] | None = None
    remedy: str = ""
    local: str | None = None
    gone: str | None = None
    separator: str = ";"

    @property
    def flag(self) -> str:
        return f"--{self.name}"

    def belongs_to(self, command: str) -> bool:
        """Whether a command takes it. A master or worker started by hand takes all of them, as the old scripts do."""
        return command == "by-hand" or command in self.commands

    def feature_missing(self, value: Any) -> str | None:
        """The feature this value asks for, if this release does not have it yet."""
        if self.later is None or value == self.default:
            return None
        return self.later if isinstance(self.later, str) else self.later.get(self.spell(value))

    def spell(self, value: Any) -> str:
        """A value as it is written after the flag."""
        if value is None:
            return ""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, dict):
            return spell_pairs(value, self.separator)
        if isinstance(value, tuple):
            return ";".join(str(v) for v in value)
        return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def read_knob(name: str, group: str, field: FieldInfo) -> Knob:
    """The knob behind a field of JobSpec."""
    extra = field.json_schema_extra
    assert isinstance(extra, dict) and isinstance(extra["knob"], dict), f"{name} is not declared with knob()"
    said: dict[str, Any] = {**extra["knob"]}
    kind, choices = _kind(field.annotation)
    if named := said.pop("choices", None):
        kind, choices = "choice", tuple(named)
    metavar = said.pop("metavar", _METAVARS[kind])
    return Knob(name, group, field.description or "", field.get_default(), kind, choices, metavar, **said)


_METAVARS: dict[Kind, str] = {
    "true|false": "true|false",
    "choice": "",
    "whole number": "N",
    "number": "SECONDS",
    "resources": "RESOURCES",
    "pairs": "K=V",
    "volumes": "VOLUMES",
    "text": "TEXT",
}


def _kind(annotation: Any) -> tuple[Kind, tuple[str, ...]]:
    arms = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    bare = next(a for a in arms if a is not type(None))
    bare = get_args(bare)[0] if get_origin(bare) is Annotated else bare
    if get_origin(bare) is Literal:
        return "choice", tuple(get_args(bare))
    if get_origin(bare) is tuple:
        assert get_args(bare)[0] is VolumeSpec
        return "volumes", ()
    if get_origin(bare) is dict:
        return "pairs", ()
    kinds: dict[Any, Kind] = {
        bool: "true|false",
        int: "whole number",
        float: "number",
        ResourceSpec: "resources",
        PrioritySpec: "text",
        str: "text",
    }
    return kinds[bare], ()
