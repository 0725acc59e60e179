"""tf.train.Example by the protobuf library itself, from the published message definitions: the oracle of our codec."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def example_class() -> Any:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="oracle_example.proto", package="oracle", syntax="proto3")

    def field(message: Any, name: str, number: int, kind: int, repeated: bool = False, of: str | None = None) -> Any:
        label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
        return message.field.add(name=name, number=number, type=kind, label=label, type_name=of)

    lists = (("BytesList", kinds.TYPE_BYTES), ("FloatList", kinds.TYPE_FLOAT), ("Int64List", kinds.TYPE_INT64))
    for name, kind in lists:
        field(file.message_type.add(name=name), "value", 1, kind, repeated=True)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("bytes_list", "float_list", "int64_list"), start=1):
        of = f".oracle.{lists[number - 1][0]}"
        field(feature, name, number, kinds.TYPE_MESSAGE, of=of).oneof_index = 0
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    field(entry, "key", 1, kinds.TYPE_STRING)
    field(entry, "value", 2, kinds.TYPE_MESSAGE, of=".oracle.Feature")
    field(features, "feature", 1, kinds.TYPE_MESSAGE, repeated=True, of=".oracle.Features.FeatureEntry")
    field(file.message_type.add(name="Example"), "features", 1, kinds.TYPE_MESSAGE, of=".oracle.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("oracle.Example"))
