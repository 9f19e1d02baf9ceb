#!/usr/bin/env python3
"""make_seeds.py BUILD: writes the seeds of formats that are not text, tests/fuzz/seeds/READER/valid-*, from nothing or,
for plugin notes, from the plugins of a build folder; token stores as strangers write them need h5py. Seeds that are text,
and fault-* (what once was one), are kept by hand.
"""
import gzip
import json
import pathlib
import struct
import sys

SEEDS = pathlib.Path(__file__).parent / "seeds"


def write(reader, name, data):
    (SEEDS / reader).mkdir(parents=True, exist_ok=True)
    (SEEDS / reader / f"valid-{name}").write_bytes(data)


def megatron(code, width, lengths, documents):
    places = [sum(lengths[:i]) * width for i in range(len(lengths))]
    return (b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(lengths), len(documents))
            + struct.pack(f"<{len(lengths)}i", *lengths) + struct.pack(f"<{len(places)}q", *places)
            + struct.pack(f"<{len(documents)}q", *documents))


def safetensors(header, size):
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + bytes(range(256))[:size]


def sections(elf):
    """Name -> content of a 64-bit little-endian ELF file."""
    offset, = struct.unpack_from("<Q", elf, 40)
    _, count, names = struct.unpack_from("<HHH", elf, 58)
    rows = [struct.unpack_from("<IIQQQQ", elf, offset + 64 * i) for i in range(count)]
    text = rows[names][4]
    return {elf[text + row[0]:elf.index(b"\0", text + row[0])].decode(): elf[row[4]:row[4] + row[5]] for row in rows}


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at


def put_varint(value):
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + put_varint(value >> 7)


def strip(message, path=()):
    """The same protobuf message without comments and without the files that every program has: 54 KB less."""
    out, at = b"", 0
    while at < len(message):
        begin = at
        key, at = varint(message, at)
        if key & 7 == 0:
            at = varint(message, at)[1]
            out += message[begin:at]
            continue
        size, at = varint(message, at)
        content, at = message[at:at + size], at + size
        here = path + (key >> 3,)
        if here == (7, 1, 9) or here == (7, 1) and content[2:].startswith((b"google/", b"ananke/")):
            continue
        if here in ((7,), (7, 1)):
            content = strip(content, here)
        out += put_varint(key) + put_varint(len(content)) + content
    return out


def small(note):
    size, = struct.unpack_from("<I", note, 4)
    message = strip(note[20:20 + size])
    return struct.pack("<III", 7, len(message), 1) + b"ananke\0\0" + message + b"\0" * (-len(message) % 4)


def library(note):
    """The smallest shared library that has the note: a header, one segment, three sections."""
    names = b"\0.shstrtab\0.note.ananke\0"
    note_at, names_at = 120, 120 + len(note)
    table = (names_at + len(names) + 7) // 8 * 8
    header = struct.pack("<4sBBBB8xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 0, 3, 62, 1, 0, 64, table, 0, 64, 56, 1, 64, 3, 1)
    segment = struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, names_at, names_at, 4096)
    rows = [(0, 0, 0, 0, 0), (1, 3, 0, names_at, len(names)), (11, 7, 2, note_at, len(note))]
    body = header + segment + note + names
    return body.ljust(table, b"\0") + b"".join(struct.pack("<IIQQQQIIQQ", a, b, c, 0, d, e, 0, 0, 4, 0) for a, b, c, d, e in rows)


def bare_note(fields):
    """A note without the descriptors of its config."""
    body = b"".join(bytes([number << 3 | 2, len(text)]) + text.encode() for number, text in fields)
    return struct.pack("<III", 7, len(body), 1) + b"ananke\0\0" + body + b"\0" * (-len(body) % 4)


def frames(*messages):
    return b"".join(struct.pack(">I", len(m)) + m for m in messages)


def field(number, content):
    if isinstance(content, int):
        return bytes([number << 3, content])
    return bytes([number << 3 | 2, len(content)]) + content


def token_store(name, libver, text, **layout):
    import h5py
    import numpy  # noqa: F401
    (SEEDS / "token_store").mkdir(parents=True, exist_ok=True)
    with h5py.File(SEEDS / "token_store" / name, "w", libver=libver) as file:
        file.create_dataset("tokens", data=numpy.arange(200, dtype="u1"), **layout)
        file.create_dataset("document_offsets", data=numpy.array([0, 3, 3, 150, 200], "u8"), **layout)
        for key in ("tokenizer", "tokenizer_hash", "source", "source_hash"):
            file.attrs[key] = text(key)
        file.attrs["format"] = text("ananke-token-store")
        for key, value in (("version", 1), ("eos_id", 0), ("vocabulary_size", 256), ("source_bytes", 99)):
            file.attrs[key] = value


def main():
    build = pathlib.Path(sys.argv[1])
    write("megatron_index", "u8", megatron(1, 1, [3, 0, 4, 5], [0, 2, 3, 4]))
    write("megatron_index", "u16", megatron(8, 2, [10, 100], [0, 1, 1, 2]))
    write("megatron_index", "i32", megatron(4, 4, [16] * 20, range(0, 21)))
    write("megatron_index", "i64", megatron(5, 8, [1, 2, 3], [0, 3]))
    write("megatron_index", "empty", megatron(3, 2, [], [0]))
    write("safetensors", "one", safetensors({"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}, 24))
    kinds = [("F64", 8), ("BF16", 2), ("F16", 2), ("I32", 4), ("I64", 8), ("U8", 1), ("BOOL", 1), ("F8_E4M3", 1)]
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for kind, width in kinds:
        header[f"model.{kind}"] = {"dtype": kind, "shape": [2], "data_offsets": [at, at + 2 * width]}
        at += 2 * width
    write("safetensors", "kinds", safetensors(header, at))
    write("safetensors", "empty", safetensors({"a": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]},
                                               "b": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}}, 4))
    write("json_lines", "compressed.gz", gzip.compress(b'{"text": "one"}\n{"text": "two", "more": 1}\n', mtime=0))
    for file in ("config_library/tune", "config_library/fsdp", "library/test_echo"):
        note = sections((build / f"tests/{file}.so").read_bytes())[".note.ananke"]
        write("plugin_note", pathlib.Path(file).name, library(small(note)))
    write("plugin_note", "bare", library(bare_note([(1, "observer"), (2, "bare"), (3, "1.0"), (4, "none"), (5, "f")])))
    hello = field(1, field(1, b"secret") + field(2, 3) + field(3, b"node") + field(4, 77) + field(5, b"0.1"))
    beat = field(3, field(1, b"step") + field(2, 9) + field(3, b"adamw"))
    exchange = field(2, field(1, b"key/1") + field(2, 0) + field(2, 1) + field(3, b"blob") + field(5, 1))
    write("control_frame", "hello", frames(hello))
    write("control_frame", "session", frames(hello, beat, exchange, field(6, field(1, b"a line")), beat, field(7, field(1, 0))))
    write("control_frame", "launcher", frames(field(8, field(1, 4) + field(2, 100)), field(4, field(1, b"why")),
                                              field(2, field(1, b"k") + field(4, b"a") + field(4, b"b") + field(5, 1)),
                                              field(5, field(1, 3) + field(4, b"message"))))
    try:
        import numpy  # noqa: F401
    except ImportError:
        sys.exit("the token stores are left as they are: this Python has no h5py")
    token_store("valid-h5py-chunked", "latest", numpy.bytes_, chunks=(5,), maxshape=(None,), fletcher32=True)
    token_store("valid-h5py-contiguous", "latest", numpy.bytes_)
    token_store("valid-h5py-compressed", "latest", numpy.bytes_, chunks=True, compression="gzip", shuffle=True)
    token_store("refused-h5py-text-of-any-length", "latest", str)
    token_store("refused-h5py-old-format", "earliest", numpy.bytes_)


if __name__ == "__main__":
    main()
