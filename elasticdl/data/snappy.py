"""The snappy framing format, as RecordIO uses it: its parts are decompressed straight into one buffer.

The CRC-32C sums of the frames are not checked: the chunk's CRC-32 covers the same bytes, and the check would cost a
quarter of the reading speed.
"""

from __future__ import annotations

import cramjam

_STREAM = b"\xff\x06\x00\x00sNaPpY"
_COMPRESSED, _PLAIN, _SKIPPABLE = 0x00, 0x01, 0x80
_MAX_FRAME_BYTES = 65536  # uncompressed; a limit of the format
_CHECKSUM_BYTES = 4


def compress(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress(data))


def decompress(data: memoryview) -> bytearray:
    """All frames of a stream; ValueError when it is not one."""
    frames = []
    total = 0
    position = len(_STREAM)
    if data[:position] != _STREAM:
        raise ValueError("it does not start with a snappy stream header")
    while position < len(data):
        kind = data[position]
        start = position + 4
        position = start + int.from_bytes(data[position + 1 : start], "little")
        if position > len(data):
            raise ValueError("a snappy frame is truncated")
        if kind in (_COMPRESSED, _PLAIN):
            body = data[start + _CHECKSUM_BYTES : position]
            size = cramjam.snappy.decompress_raw_len(body) if kind == _COMPRESSED else len(body)
            if size > _MAX_FRAME_BYTES:
                raise ValueError("a snappy frame is larger than the format allows")
            frames.append((kind, body, total))
            total += size
        elif kind < _SKIPPABLE:
            raise ValueError(f"a snappy frame has the unknown kind {kind}")
    out = bytearray(total)
    view = memoryview(out)
    for (kind, body, begin), (_, _, end) in zip(frames, [*frames[1:], (0, data, total)], strict=True):
        if kind == _PLAIN:
            view[begin:end] = body
        else:
            cramjam.snappy.decompress_raw_into(body, view[begin:end])
    view.release()
    return out
