"""The kinds of value a knob can hold, and how each is read from the text a user writes."""

from __future__ import annotations

import json
import re
import shlex
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from elasticdl.job.invalid import Invalid, nearest
from elasticdl.job.strategies import FOLDERS

DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
# `elasticdl-<job>-master` is also a Service's name on Kubernetes, which may have 63 characters.
JOB_NAME_MAX = 45


def blank_is_none(value: Any) -> Any:
    """An empty text means that nothing was given."""
    return None if isinstance(value, str) and not value.strip() else value


def whole(value: Any) -> Any:
    """A whole number; pydantic alone would take true for 1."""
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d+\s*", value):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise Invalid("not a whole number", "Give a whole number, such as 2.")


def number(value: Any) -> Any:
    """A number; pydantic alone would take true for 1."""
    if isinstance(value, bool):
        raise Invalid("not a number", "Give a number, such as 30 or 0.5.")
    return value


def job_name(value: Any) -> Any:
    """A DNS label, since pods and services are named after the job."""
    name = blank_is_none(value)
    if name is None:
        return None
    name = str(name)
    if DNS_LABEL.fullmatch(name) and len(name) <= JOB_NAME_MAX:
        return name
    suggestion = re.sub(r"[^a-z0-9]+", "-", name.lower())[:JOB_NAME_MAX].strip("-")
    hint = f"Write {suggestion}." if suggestion else "Write something like test-mnist."
    if len(name) > JOB_NAME_MAX:
        raise Invalid(f"longer than {JOB_NAME_MAX} characters", hint)
    raise Invalid("not a DNS label (lower-case letters, digits and dashes)", hint)


def dns_label(value: Any) -> Any:
    """A Kubernetes namespace or PriorityClass."""
    name = blank_is_none(value)
    if name is None or (len(str(name)) <= 63 and DNS_LABEL.fullmatch(str(name))):
        return name
    raise Invalid("not a DNS label (lower-case letters, digits and dashes)", "Use the name that kubectl shows.")


def symbol(value: Any) -> Any:
    """A name in the model file, or `module.name` beside it."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", value.strip()):
        return value.strip()
    raise Invalid("not a Python name", "Give the name of a function in the model file, or module.name.")


def _matching(pattern: str, what: str, remedy: str, empty: str | None = None) -> BeforeValidator:
    """A text of this form; `empty` where nothing was given."""

    def read(value: Any) -> Any:
        text = blank_is_none(value)
        if text is not None and not re.fullmatch(pattern, str(text)):
            raise Invalid(what, remedy)
        return empty if text is None else text

    return BeforeValidator(read)


def regular_expression(value: Any) -> Any:
    """A pattern that compiles."""
    text = blank_is_none(value)
    if text is not None:
        try:
            re.compile(str(text))
        except re.error as error:
            raise Invalid(f"not a regular expression: {error}", "Give a name or a pattern, such as 'AWS_.*'.") from None
    return text


def command_line(value: Any) -> Any:
    """A program and its arguments in one text; YAML may give a list of words."""
    if isinstance(value, (list, tuple)):
        return shlex.join(str(word) for word in value)
    text = blank_is_none(value)
    if text is not None:
        try:
            shlex.split(str(text))
        except ValueError as error:
            raise Invalid(f"cannot be split into words: {str(error).lower()}", "Close every quote.") from None
    return text


def json_object(value: Any) -> Any:
    """The text of a JSON object; YAML may give the mapping itself."""
    if isinstance(value, dict):
        return json.dumps(value)
    text = blank_is_none(value)
    if text is not None:
        try:
            parsed = json.loads(str(text))
        except ValueError as error:
            raise Invalid(f"not JSON: {error}", "Give one JSON object.") from None
        if not isinstance(parsed, dict):
            raise Invalid("not a JSON object", "Give one JSON object.")
    return text


def on_off(value: Any) -> Any:
    """`on` and `off`, which YAML reads as true and false."""
    return {"true": "on", "false": "off"}.get(str(value).lower(), value)


def upper(value: Any) -> Any:
    """Log levels, in either case."""
    return value.upper() if isinstance(value, str) else value


def strategy(value: Any) -> Any:
    if value in FOLDERS:
        return value
    meant = nearest(str(value), FOLDERS)
    raise Invalid(f"not one of {', '.join(FOLDERS)}", f"Did you mean {meant}?" if meant else "Choose one of them.")


def read_pairs(text: str, separator: str) -> dict[str, str]:
    """`k=v<separator>k=v`. A value may be quoted; a piece without `=` belongs to the value before it."""
    pairs: dict[str, str] = {}
    last = ""
    position = 0
    while position < len(text):
        quoted = re.compile(rf"\s*([^={separator}]+)=\s*(['\"])").match(text, position)
        end = _closing(text, quoted.end(), quoted[2]) if quoted else -1
        follows = re.compile(rf"\s*({separator}|$)").match(text, end + 1) if end >= 0 else None
        if quoted and follows:
            last = _new_key(quoted[1].strip(), pairs)
            pairs[last] = re.sub(r"\\(.)", r"\1", text[quoted.end() : end])
            position = follows.end()
            continue
        piece, _, rest = text[position:].partition(separator)
        position = len(text) - len(rest)
        key, equals, value = piece.partition("=")
        if equals:
            last = _new_key(key.strip(), pairs)
            pairs[last] = value.strip()
        elif last and piece.strip():
            pairs[last] += separator + piece.rstrip()
        elif piece.strip():
            raise Invalid(f"has {piece.strip()!r} instead of name=value", f"Write name=value{separator}name=value.")
    return pairs


def _closing(text: str, start: int, quote: str) -> int:
    found = re.compile(rf"(?:[^\\{quote}]|\\.)*{quote}", re.DOTALL).match(text, start)
    return found.end() - 1 if found else -1


def _new_key(key: str, pairs: dict[str, str]) -> str:
    if not key:
        raise Invalid("has a value without a name", "Write name=value.")
    if key in pairs:
        raise Invalid(f"gives {key} twice", "Keep one of them.")
    return key


def spell_pairs(pairs: dict[str, str], separator: str) -> str:
    """The text that `read_pairs` turns back into the same mapping."""
    return separator.join(f"{key}={_quoted(value, separator)}" for key, value in pairs.items())


def _quoted(value: str, separator: str) -> str:
    plain = value == value.strip() and separator not in value and value[:1] not in ("'", '"')
    return value if plain else '"' + re.sub(r'([\\"])', r"\\\1", value) + '"'


def _mapping(value: Any, separator: str) -> Any:
    if isinstance(value, str):
        return read_pairs(value, separator)
    if isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, (dict, list)):
                raise Invalid(f"holds more than one value for {key}", "Give each name one value.")
        return {str(k): _plain(v) for k, v in value.items()}
    if value is None:
        return {}
    raise Invalid("not a mapping", f"Write name=value{separator}name=value, or a mapping in YAML.")


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def semicolon_pairs(value: Any) -> Any:
    return _mapping(value, ";")


def comma_pairs(value: Any) -> Any:
    """Environment variables: the names must be ones a process can have."""
    pairs = _mapping(value, ",")
    for name, item in pairs.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise Invalid(f"has {name!r}, which is not a variable's name", "Use letters, digits and underscores.")
        if "\0" in item:
            raise Invalid(f"gives {name} a NUL character", "Remove it.")
    return pairs


Text = Annotated[str | None, BeforeValidator(blank_is_none)]
Count = Annotated[int, Field(ge=0), BeforeValidator(whole)]  # 0 often means "none" or "no limit"
Positive = Annotated[int, Field(ge=1), BeforeValidator(whole)]
OptionalCount = Count | None
OptionalPositive = Positive | None
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(number)]
SecondsOrNever = Annotated[float, Field(ge=0, allow_inf_nan=False), BeforeValidator(number)]
Port = Annotated[int, Field(ge=0, le=65535), BeforeValidator(whole)]
JobName = Annotated[str | None, BeforeValidator(job_name)]
DnsLabel = Annotated[str | None, BeforeValidator(dns_label)]
Symbol = Annotated[str, BeforeValidator(symbol)]
ModelDefinition = Annotated[
    str | None,
    _matching(
        r"[\w-]+(\.[\w-]+)*\.[A-Za-z_]\w*",
        "not a dotted path to a symbol",
        "Write folder.file.symbol, such as mnist.mnist_functional_api.custom_model.",
    ),
]
ModelFile = Annotated[
    str | None, _matching(r"(.*/)?[\w-]+\.py", "not the path of a Python file", "Give a path that ends in .py.")
]
Image = Annotated[str | None, _matching(r"[^\s]+", "contains spaces", "Give an image's name, such as elasticdl:mnist.")]
Pattern = Annotated[str | None, BeforeValidator(regular_expression)]
CommandLine = Annotated[str | None, BeforeValidator(command_line)]
JsonObject = Annotated[str | None, BeforeValidator(json_object)]
Params = Annotated[dict[str, str], BeforeValidator(semicolon_pairs)]
Envs = Annotated[dict[str, str], BeforeValidator(comma_pairs)]
StrategyName = Annotated[str, BeforeValidator(strategy)]
CriticalWorkers = Annotated[
    str,
    _matching(
        r"default|none|\d+:\d+(,\d+:\d+)*",
        "not default, none or a list of index:relaunches",
        "Write something like 0:1,3:0.",
        empty="default",
    ),
]
