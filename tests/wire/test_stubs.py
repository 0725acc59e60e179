"""The committed stubs match control.proto; checked without a compiler or the network."""

from __future__ import annotations

import re
from pathlib import Path

from google.protobuf.descriptor import FieldDescriptor

from elasticdl.wire import control_pb2

PROTO = Path(control_pb2.__file__).with_name("control.proto")
TYPES = {
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_UINT64: "uint64",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_DOUBLE: "double",
}
FIELD = re.compile(r"\s*(repeated )?(map<string, \w+>|\w+) (\w+) = (\d+);")


def described() -> dict[str, list[tuple[str, str, int]]]:
    """Messages of the proto file: (type, name, number) of each field."""
    text = re.sub(r"//[^\n]*", "", PROTO.read_text())
    found: dict[str, list[tuple[str, str, int]]] = {}
    for name, body in re.findall(r"^message (\w+) \{(\}|.*?^\})", text, re.S | re.M):
        found[name] = [((r or "") + t, n, int(number)) for r, t, n, number in FIELD.findall(body)]
    return found


def compiled() -> dict[str, list[tuple[str, str, int]]]:
    found = {}
    for name, message in control_pb2.DESCRIPTOR.message_types_by_name.items():
        fields = []
        for f in message.fields:
            if f.message_type is not None and f.message_type.GetOptions().map_entry:
                of = f.message_type.fields_by_name["value"]
                value = of.message_type.name if of.message_type is not None else TYPES[of.type]
                fields.append((f"map<string, {value}>", f.name, f.number))
                continue
            kind = f.message_type.name if f.message_type is not None else TYPES[f.type]
            repeated = f.is_repeated if hasattr(f, "is_repeated") else f.label == FieldDescriptor.LABEL_REPEATED  # type: ignore[attr-defined]
            fields.append((("repeated " if repeated else "") + kind, f.name, f.number))
        found[name] = fields
    return found


def test_the_committed_stubs_hold_every_message_and_field_of_the_proto_file() -> None:
    in_file, in_stubs = described(), compiled()
    assert len(in_file) > 20
    assert in_file == in_stubs, "run scripts/make_stubs.sh"
