"""What a replica asks of the machine: resources, volumes and priority, read from the text of their flags."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, WithJsonSchema

from elasticdl.job.invalid import Invalid, nearest
from elasticdl.job.values import blank_is_none, dns_label, read_pairs, spell_pairs

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
UNITS |= {unit + "i": 1024**power for power, unit in enumerate("KMGTPE", start=1)}
EXAMPLE = "Write something like cpu=1,memory=4096Mi,gpu=1."
KNOWN = ("cpu", "memory", "gpu", "ephemeral-storage", "disk")


@dataclass(frozen=True)
class ResourceSpec:
    """An amount of a machine: cores, bytes, and whole numbers of anything else by its Kubernetes name."""

    cpu: float | None = None
    memory: int | None = None
    extended: tuple[tuple[str, int], ...] = ()  # sorted by name; ephemeral-storage is in bytes

    @classmethod
    def parse(cls, value: Any) -> ResourceSpec:
        """Read `cpu=1,memory=4096Mi,nvidia.com/gpu=1`, or the same as a mapping."""
        if isinstance(value, ResourceSpec):
            return value
        if isinstance(value, dict):
            pairs = {str(k): str(v) for k, v in value.items()}
        elif isinstance(value, str):
            pairs = read_pairs(value, ",")
        else:
            raise Invalid("not a list of resources", EXAMPLE)
        cpu: float | None = None
        memory: int | None = None
        extended: dict[str, int] = {}
        for key, text in pairs.items():
            if key == "cpu":
                cpu = _cores(text)
            elif key == "memory":
                memory = _amount(key, text)
            else:
                name = _kubernetes_name(key)
                if name in extended:
                    raise Invalid(f"gives {name} twice", "Keep one of them.")
                extended[name] = _amount(name, text) if _is_storage(name) else _whole(name, text)
        return cls(cpu, memory, tuple(sorted(extended.items())))

    @property
    def gpu(self) -> int:
        """How many NVIDIA GPUs."""
        return dict(self.extended).get("nvidia.com/gpu", 0)

    def amounts(self) -> dict[str, float]:
        """Every amount by its Kubernetes name."""
        known = {"cpu": self.cpu, "memory": self.memory}
        return {k: v for k, v in known.items() if v is not None} | dict(self.extended)

    def at_most(self, limit: ResourceSpec) -> ResourceSpec:
        """The same, lowered to a limit where it is above."""
        allowed = limit.amounts()
        return ResourceSpec.parse(
            {name: min(amount, allowed.get(name, amount)) for name, amount in self.amounts().items()}
        )

    def __str__(self) -> str:
        parts = [f"cpu={self.cpu:.3f}".rstrip("0").rstrip(".")] if self.cpu is not None else []
        if self.memory is not None:
            parts.append(f"memory={_spell_bytes(self.memory)}")
        for name, amount in self.extended:
            parts.append(f"{name}={_spell_bytes(amount) if _is_storage(name) else amount}")
        return ",".join(parts)


def _is_storage(name: str) -> bool:
    return name == "ephemeral-storage" or name.startswith("hugepages-")


def _cores(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)(m?)", text)
    cores = round(float(found[1]) / (1000 if found[2] else 1), 3) if found else 0.0
    if cores <= 0:
        raise Invalid(f"has cpu={text}, which is not a number of cores", "Write cores (0.5) or thousandths (500m).")
    return cores


def _amount(name: str, text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]*)", text)
    if found and found[2] not in UNITS:
        meant = next((u for u in UNITS if u and u[0].lower() == found[2][0].lower()), "Mi")
        meant = meant + "i" if meant in "KMGTPE" else meant
        raise Invalid(
            f"has {name}={text} with the unknown unit {found[2]!r}",
            f"Use Ki, Mi, Gi, Ti (or K, M, G, T), such as {name}={found[1]}{meant}.",
        )
    amount = _in_bytes(text)
    if not amount:
        raise Invalid(f"has {name}={text}, which is not a number of bytes", f"Write something like {name}=4096Mi.")
    return amount


def _in_bytes(text: str) -> int | None:
    """`2Mi`, `1.5G`, `0`; None for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]*)", text)
    if found is None or found[2] not in UNITS:
        return None
    return int(float(found[1]) * UNITS[found[2]]) if "." in found[1] else int(found[1]) * UNITS[found[2]]


def read_bytes(value: Any) -> Any:
    """A number of bytes, with a unit or without: `2Mi`, `1G`, `0`."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    amount = _in_bytes(value.strip()) if isinstance(value, str) else None
    if amount is None:
        raise Invalid("not a number of bytes", "Write something like 2Mi, with one of Ki, Mi, Gi, Ti (or K, M, G, T).")
    return amount


ByteCount = Annotated[int, Field(ge=0), BeforeValidator(read_bytes)]


def _whole(name: str, text: str) -> int:
    if not re.fullmatch(r"\d+", text):
        raise Invalid(f"has {name}={text}, which is not a whole number", f"Write something like {name}=1.")
    return int(text)


def _kubernetes_name(key: str) -> str:
    if key == "gpu":
        return "nvidia.com/gpu"
    if key == "disk":
        return "ephemeral-storage"
    if key == "ephemeral-storage" or re.fullmatch(r"hugepages-\w+", key):
        return key
    if re.fullmatch(r"[A-Za-z0-9.-]+/[A-Za-z0-9._-]+", key):
        return key
    meant = nearest(key, KNOWN)
    hint = (
        f"Did you mean {meant}?"
        if meant
        else "Use cpu, memory, gpu, ephemeral-storage or a name like vendor.com/thing."
    )
    raise Invalid(f"names the unknown resource {key!r}", hint)


def _spell_bytes(amount: int) -> str:
    for unit in ("Mi", "Ki"):
        if amount % UNITS[unit] == 0:
            return f"{amount // UNITS[unit]}{unit}"
    return str(amount)


HOST_PATH_TYPES = ("Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket", "CharDevice", "BlockDevice")


@dataclass(frozen=True)
class VolumeSpec:
    """A volume mounted into every pod: a path of the node or a PersistentVolumeClaim."""

    host_path: str | None = None
    claim_name: str | None = None
    mount_path: str = ""
    sub_path: str | None = None
    type: str | None = None

    @classmethod
    def parse(cls, pairs: dict[str, str]) -> VolumeSpec:
        known = tuple(f.name for f in fields(cls))
        for key in pairs:
            if key not in known:
                meant = nearest(key, known)
                raise Invalid(
                    f"has a volume with the unknown key {key!r}",
                    f"Did you mean {meant}?" if meant else f"A volume has {', '.join(known)}.",
                )
        if not pairs.get("mount_path", "").startswith("/"):
            raise Invalid("has a volume without an absolute mount_path", "Write host_path=/data,mount_path=/data.")
        if bool(pairs.get("host_path")) == bool(pairs.get("claim_name")):
            raise Invalid(
                "has a volume that needs one of host_path and claim_name",
                "Write host_path=/data,mount_path=/data or claim_name=my-claim,mount_path=/data.",
            )
        if pairs.get("type") and (not pairs.get("host_path") or pairs["type"] not in HOST_PATH_TYPES):
            raise Invalid(
                f"has a volume of type {pairs['type']!r}",
                f"With host_path, type is one of {', '.join(HOST_PATH_TYPES)}.",
            )
        return cls(**{key: value for key, value in pairs.items() if value})

    def as_dict(self) -> dict[str, str]:
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}

    def __str__(self) -> str:
        return spell_pairs(self.as_dict(), ",")


def read_volumes(value: Any) -> tuple[VolumeSpec, ...]:
    """Volumes separated by `;`, or a list of mappings in YAML."""
    if value is None:
        return ()
    items = [v for v in value.split(";") if v.strip()] if isinstance(value, str) else value
    if isinstance(items, dict):
        items = [items]
    if not isinstance(items, (list, tuple)):
        raise Invalid("not a list of volumes", "Write host_path=/data,mount_path=/data.")
    volumes = tuple(_read_volume(item) for item in items)
    mounts = [v.mount_path for v in volumes]
    twice = next((m for m in mounts if mounts.count(m) > 1), None)
    if twice:
        raise Invalid(f"mounts two volumes at {twice}", "Give each volume its own mount_path.")
    return volumes


def _read_volume(item: Any) -> VolumeSpec:
    if isinstance(item, VolumeSpec):
        return item
    if isinstance(item, dict):
        return VolumeSpec.parse({str(k): str(v) for k, v in item.items() if v is not None})
    return VolumeSpec.parse(read_pairs(str(item), ","))


@dataclass(frozen=True)
class PrioritySpec:
    """The PriorityClass of the workers: one for all, or `name` for a share of them and `low` for the rest."""

    name: str
    share: float = 1.0

    @classmethod
    def parse(cls, value: Any) -> PrioritySpec | None:
        """Read `low`, `0.5` (half of them high) or `high=0.5`."""
        if value is None or isinstance(value, PrioritySpec):
            return value
        text = blank_is_none(str(value))
        if text is None:
            return None
        name, equals, share = text.partition("=")
        if not equals and re.fullmatch(r"\d+(\.\d+)?", text):
            name, equals, share = "high", "=", text
        if not equals:
            return cls(dns_label(name.strip()))
        if not re.fullmatch(r"\s*\d+(\.\d+)?\s*", share) or not 0 <= float(share) <= 1:
            raise Invalid("not a share between 0 and 1", "Write high, low, 0.5 or high=0.5.")
        return cls(dns_label(name.strip()), float(share))

    def __str__(self) -> str:
        return self.name if self.share == 1.0 else f"{self.name}={self.share}"


def _optional_resources(value: Any) -> ResourceSpec | None:
    value = blank_is_none(value)
    found = None if value is None else ResourceSpec.parse(value)
    return found if found != ResourceSpec() else None


_AS_TEXT = WithJsonSchema({"type": "string"})

Resources = Annotated[ResourceSpec, PlainValidator(ResourceSpec.parse), PlainSerializer(str, return_type=str), _AS_TEXT]
OptionalResources = Annotated[
    ResourceSpec | None,
    PlainValidator(_optional_resources),
    PlainSerializer(lambda r: None if r is None else str(r), return_type=str | None),
    WithJsonSchema({"type": ["string", "null"]}),
]
Volumes = Annotated[
    tuple[VolumeSpec, ...],
    PlainValidator(read_volumes),
    PlainSerializer(lambda vs: [v.as_dict() for v in vs], return_type=list[dict[str, str]]),
    WithJsonSchema({"type": "array", "items": {"type": "object", "additionalProperties": {"type": "string"}}}),
]
WorkerPriority = Annotated[
    PrioritySpec | None,
    PlainValidator(PrioritySpec.parse),
    PlainSerializer(lambda p: None if p is None else str(p), return_type=str | None),
    WithJsonSchema({"type": ["string", "null"]}),
]
