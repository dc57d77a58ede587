"""Writes files of many shapes, and prints what the readers of Python's library find in them: `{"items": {name: value}, "passed_over": {reason: count}}`."""
import csv, io, json, os, posixpath, random, struct, subprocess, sys, tarfile, zipfile, zlib

what, seed, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
rng = random.Random(seed)
items, passed_over = {}, {}


def passed(reason, n=1):
    passed_over[reason] = passed_over.get(reason, 0) + n


def path(name):
    return os.path.join(folder, name)


def is_hidden(name):
    return any(part == "__MACOSX" or part.startswith(".") and part not in (".", "..") for part in name.split("/"))


def png():
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0\x7f")) + chunk(b"IEND", b"")


def npy(values):
    head = str({"descr": "<f4", "fortran_order": False, "shape": (len(values),)}).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + struct.pack(f"<{len(values)}f", *values)


def add(tar, name, content=b"", kind=tarfile.REGTYPE, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, len(content)
    tar.addfile(info, io.BytesIO(content))


def write_tar(name, form, first):
    """An archive of about thirty members, one of each kind and others at random."""
    n = first
    with tarfile.open(path(name), "w", format=form) as tar:
        add(tar, "d", kind=tarfile.DIRTYPE)
        add(tar, "d/e", kind=tarfile.DIRTYPE)
        files = []
        kinds = ["file", "file", "long", "umlaut", "empty", "hard", "symbolic", "upwards", "chain", "ahead", "none", "outside", "absolute", "round", "to_folder", "hidden", "mac", "below_hidden", "plain", "pipe", "device", "xattr"]
        rng.shuffle(kinds)
        for kind in ["file", "file"] + kinds + rng.choices(kinds, k=8):
            n += 1
            key, content = f"{n:04}", f"content {n}".encode()
            pick = rng.choice([file for file in files if len(file) < 80] or files) if files else None
            if kind == "file":
                files.append(rng.choice(["", "./", "d/", "d/e/"]) + key + ".txt")
                add(tar, files[-1], content)
            elif kind == "long" and form != tarfile.USTAR_FORMAT:
                files.append("d/" * 70 + key + ".txt")
                add(tar, files[-1], content)
            elif kind == "long":
                files.append("d/" * 60 + key + ".txt")
                add(tar, files[-1], content)
            elif kind == "umlaut":
                files.append(f"d/ä ü {key}.txt")
                add(tar, files[-1], content)
            elif kind == "empty":
                add(tar, key + ".txt")
            elif kind == "hard":
                add(tar, key + ".txt", kind=tarfile.LNKTYPE, target=pick)
            elif kind == "symbolic":
                add(tar, key + ".txt", kind=tarfile.SYMTYPE, target=pick)
            elif kind == "upwards":
                add(tar, "x/y/" + key + ".txt", kind=tarfile.SYMTYPE, target="../../" + pick)
            elif kind == "chain":
                add(tar, key + "a.txt", kind=tarfile.SYMTYPE, target=key + "b.txt")
                add(tar, key + "b.txt", kind=tarfile.SYMTYPE, target=pick)
            elif kind == "ahead":
                add(tar, key + "l.txt", kind=tarfile.SYMTYPE, target="d/" + key + ".txt")
                add(tar, "d/" + key + ".txt", content)
            elif kind == "none":
                add(tar, key + "h.txt", kind=tarfile.LNKTYPE, target="gone.txt")
                add(tar, key + "s.txt", kind=tarfile.SYMTYPE, target="gone.txt")
            elif kind == "outside":
                add(tar, "d/" + key + ".txt", kind=tarfile.SYMTYPE, target="../../0001.txt")
            elif kind == "absolute":
                add(tar, key + ".txt", kind=tarfile.SYMTYPE, target="/etc/passwd")
            elif kind == "round":
                add(tar, key + ".txt", kind=tarfile.SYMTYPE, target=key + ".txt")
                add(tar, key + "a.txt", kind=tarfile.SYMTYPE, target=key + "b.txt")
                add(tar, key + "b.txt", kind=tarfile.SYMTYPE, target=key + "a.txt")
            elif kind == "to_folder":
                add(tar, key + ".txt", kind=tarfile.SYMTYPE, target="d/e")
            elif kind == "hidden":
                add(tar, f"d/.{key}.txt", content)
            elif kind == "mac":
                add(tar, f"__MACOSX/d/._{key}.txt", content)
            elif kind == "below_hidden":
                add(tar, f".git/{key}.txt", content)
            elif kind == "plain":
                add(tar, "d/README" + key, content)
            elif kind == "pipe":
                add(tar, key + ".txt", kind=tarfile.FIFOTYPE)
            elif kind == "device":
                add(tar, key + ".txt", kind=tarfile.CHRTYPE)
            elif kind == "xattr":
                info = tarfile.TarInfo(key + ".txt")
                info.size = len(content)
                if form == tarfile.PAX_FORMAT:
                    info.pax_headers = {"comment": "two\nlines", "path": f"long {key}.txt"}
                tar.addfile(info, io.BytesIO(content))
    return n


def find_tar(name):
    with tarfile.open(path(name), "r:", ignore_zeros=True) as tar:
        for member in tar:
            key, _, extension = member.name.rpartition("/")[2].partition(".")
            folders = posixpath.normpath(member.name).rpartition("/")[0]
            item = f"{name}/" + (folders + "/" if folders else "") + key
            if is_hidden(member.name):
                passed("hidden")
            elif member.isdir():
                passed("folder")
            elif member.isdev():
                passed("special")
            elif not extension:
                passed("no_extension")
            elif member.issparse():
                items[item] = None
            else:
                assert extension == "txt", member.name
                try:
                    file = tar.extractfile(member)
                except (KeyError, RecursionError):
                    items[item] = None
                else:
                    if file is None:
                        passed("folder_link")
                    else:
                        items[item] = file.read().decode()


if what == "tar":
    n = 0
    for at, form in enumerate([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT] * 2):
        n = write_tar(f"{at}.tar", form, n)
        if at >= 3:
            # One behind another, with any number of zeros in between.
            n = write_tar("more", rng.choice([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]), n)
            with open(path(f"{at}.tar"), "ab") as both, open(path("more"), "rb") as more:
                both.write(b"\0" * 512 * rng.randrange(5) + more.read() + b"\0" * rng.randrange(2000))
            os.remove(path("more"))
        find_tar(f"{at}.tar")
    # As the program itself writes it, which stores a file that is given twice as a link to its own name; and a sparse file.
    os.makedirs(path("disk"))
    for key in "ab":
        with open(path(f"disk/{key}.txt"), "w") as file:
            file.write(key)
    os.link(path("disk/a.txt"), path("disk/hard.txt"))
    os.symlink("a.txt", path("disk/soft.txt"))
    with open(path("disk/sparse.txt"), "wb") as file:
        file.truncate(1 << 20)
        file.seek(1 << 19)
        file.write(b"x" * 4096)
    names = sorted(os.listdir(path("disk")))
    for form in ("gnu", "pax"):
        subprocess.run(["tar", "--sparse", f"--format={form}", "-cf", path(f"{form}.tar"), "-C", path("disk")] + names, check=True)
        find_tar(f"{form}.tar")
elif what == "zip":
    class Stream(io.RawIOBase):
        """Cannot seek, so that sizes stand behind the members."""
        def __init__(self, file):
            self.file = file
        def writable(self):
            return True
        def write(self, data):
            return self.file.write(data)

    def fill(archive):
        archive.writestr("d/", b"")
        archive.writestr("d/0.png", png())
        archive.writestr("d/e/ä.PNG", png(), zipfile.ZIP_DEFLATED)
        archive.writestr("__MACOSX/d/._0.png", b"\0\5\x16\7" + bytes(160))
        archive.writestr("d/.hidden.png", png())
        archive.writestr(".git/0.png", png())
        archive.writestr("notes.txt", b"no picture")
        archive.writestr("broken.png", b"no picture either")
        links = (("link.png", b"d/0.png"), ("d/up.png", b"../large.png"), ("out.png", b"../0.png"), ("gone.png", b"none.png"), ("to.png", b"d"))
        for mode, name, content in [(0o120777, *link) for link in links] + [(0o010644, "pipe.png", b"")]:
            info = zipfile.ZipInfo(name)
            info.create_system, info.external_attr = 3, mode << 16
            archive.writestr(info, content)
        with archive.open(zipfile.ZipInfo("large.png"), "w", force_zip64=True) as member:
            member.write(png())

    with zipfile.ZipFile(path("plain.zip"), "w") as archive:
        fill(archive)
    with zipfile.ZipFile(path("comment.zip"), "w") as archive:
        fill(archive)
        archive.comment = b"a comment" * 2000
    with open(path("stream.zip"), "wb") as file, zipfile.ZipFile(Stream(file), "w") as archive:
        fill(archive)
    with zipfile.ZipFile(path("added.zip"), "w") as archive:
        archive.writestr("first.png", png())
    with zipfile.ZipFile(path("added.zip"), "a") as archive:
        fill(archive)
    with zipfile.ZipFile(path("empty.zip"), "w"):
        pass
    for name in ("plain", "comment", "stream", "added", "empty"):
        with zipfile.ZipFile(path(name + ".zip")) as archive:
            for info in archive.infolist():
                if is_hidden(info.filename):
                    passed("hidden")
                elif info.is_dir():
                    passed("folder")
                elif info.external_attr >> 28 == 1:
                    passed("special")
                elif info.filename == "to.png":
                    passed("folder_link")
                elif info.external_attr >> 28 == 0o12:
                    items[f"{name}.zip/{info.filename}"] = True if info.filename in ("link.png", "d/up.png") else None
                elif not info.filename.lower().endswith(".png"):
                    passed("not_taken")
                else:
                    is_good = archive.read(info) == png()
                    items[f"{name}.zip/{info.filename}"] = True if is_good else None
elif what == "folder":
    for name in ("a.png", "d/b.png", "d/e/c.png", ".hidden.png", "d/._b.png"):
        os.makedirs(os.path.dirname(path("folder/" + name)), exist_ok=True)
        with open(path("folder/" + name), "wb") as file:
            file.write(png())
        if is_hidden(name):
            passed("hidden")
        else:
            items[name] = True
    with tarfile.open(path("folder.tar"), "w") as tar:
        tar.add(path("folder"), ".")
    with zipfile.ZipFile(path("folder.zip"), "w") as archive:
        for top, folders, names in os.walk(path("folder")):
            for name in folders + names:
                archive.write(os.path.join(top, name), os.path.relpath(os.path.join(top, name), path("folder")))
elif what == "csv":
    texts = ["plain", "with, comma", 'with "quotes"', "two\nlines", "\n", " ", "ä"]
    for name, end in (("unix", "\n"), ("windows", "\r\n")):
        with open(path(name + ".csv"), "w", newline="") as file:
            writer = csv.writer(file, lineterminator=end)
            writer.writerow(["n", "t"])
            for at, text in enumerate(texts):
                writer.writerow([at, text])
                file.write(end * rng.randrange(3))
        with open(path(name + ".csv"), newline="") as file:
            reader, line = csv.reader(file), 1
            for row in reader:
                if not row:
                    passed("blank_line")
                elif line > 1:
                    items[f"{name}.csv:{line}"] = row[1]
                line = reader.line_num + 1
elif what == "jsonl":
    lines = ['{"t": "a"}', "", '{"t": "b", "more": [1]}', "   ", "\t", '{"t": "c"}{"t": "d"}', "[]", '{"t": "e"}']
    with open(path("a.jsonl"), "w") as file:
        file.write("\n".join(lines))
    for at, line in enumerate(lines):
        if not line.strip():
            passed("blank_line")
            continue
        try:
            items[f"a.jsonl:{at + 1}"] = json.loads(line)["t"]
        except (ValueError, TypeError):
            items[f"a.jsonl:{at + 1}"] = None
elif what == "parquet":
    import pyarrow, pyarrow.parquet
    shapes = [{}, {"write_page_index": True}, {"row_group_size": 3, "compression": "zstd"}, {"use_dictionary": False, "write_statistics": False}, {"version": "1.0", "data_page_size": 20}]
    for at, shape in enumerate(shapes):
        table = pyarrow.table({"t": [f"{at} {row}" for row in range(at * 5)], "n": list(range(at * 5))}, schema=pyarrow.schema({"t": pyarrow.string(), "n": pyarrow.int64()}))
        pyarrow.parquet.write_table(table, path(f"good-{at}.parquet"), **shape)
        for row, text in enumerate(pyarrow.parquet.read_table(path(f"good-{at}.parquet"))["t"].to_pylist()):
            items[f"good-{at}.parquet[{row}]"] = text
    times = {"t": ["a"], "when": pyarrow.array([1577840523456789], pyarrow.timestamp("us")), "day": pyarrow.array([18262], pyarrow.date32())}
    pyarrow.parquet.write_table(pyarrow.table(times), path("times.parquet"))
    read = lambda at: open(path(f"good-{at}.parquet"), "rb").read()
    for name, parts in (("both", (2, 2)), ("mixed", (1, 4))):
        with open(path(name + ".parquet"), "wb") as file:
            file.write(b"".join(map(read, parts)))
elif what == "arrays":
    import numpy
    shapes = [(3,), (0,), (1, 2), (5, 2, 2)]
    for at, shape in enumerate(shapes):
        x = numpy.arange(at, at + int(numpy.prod(shape)), dtype=rng.choice(["f8", "i4", ">f4", "u1"])).reshape(shape)
        folder_of = lambda *key: path(os.path.join(f"of{len(shape)}", *key))
        os.makedirs(folder_of(), exist_ok=True)
        numpy.save(folder_of(f"{at}.npy"), x)
        numpy.savez(folder_of(f"{at}-plain.npz"), y=x, x=x)
        numpy.savez_compressed(folder_of(f"{at}-small.npz"), x=x)
        for name in (f"{at}.npy", f"{at}-plain.npz", f"{at}-small.npz"):
            found = numpy.load(folder_of(name))
            for row, value in enumerate(found["x"] if name.endswith("z") else found):
                items[f"{name}[{row}]"] = value.astype("f8").ravel().tolist()
elif what == "tiff":
    import numpy, tifffile
    for at in range(8):
        with tifffile.TiffWriter(path(f"{at}.tif"), bigtiff=at % 3 == 2, byteorder=">" if at % 2 else "<") as file:
            for page in range(rng.choice([1, 1, 2, 3, 7])):
                pixels = numpy.full((rng.randrange(1, 9), rng.randrange(1, 9)), page, "u1")
                file.write(pixels, photometric="minisblack", compression=rng.choice([None, "zlib"]), contiguous=False, metadata=None)
                if at in (4, 5):
                    file.write(pixels[:1, :1] + 100, photometric="minisblack", subfiletype=1, metadata=None)
        with tifffile.TiffFile(path(f"{at}.tif")) as file:
            whole = [page for page in file.pages if not page.is_reduced]
            items[f"{at}.tif"] = [int(page.asarray()[0, 0]) for page in whole]
            if len(whole) > 1:
                passed("pages", len(whole) - 1)
elif what == "nothing":
    with tarfile.open(path("hidden.tar"), "w") as tar:
        add(tar, ".0.txt", b"0")
        add(tar, "__MACOSX/1.txt", b"1")
    with tarfile.open(path("folders.tar"), "w") as tar:
        add(tar, "d", kind=tarfile.DIRTYPE)
        add(tar, "d/0.txt", kind=tarfile.FIFOTYPE)
    with zipfile.ZipFile(path("hidden.zip"), "w") as archive:
        archive.writestr(".0.png", png())
        archive.writestr("__MACOSX/._0.png", b"")
    with zipfile.ZipFile(path("notes.zip"), "w") as archive:
        archive.writestr("d/", b"")
        archive.writestr("d/notes.txt", b"")
print(json.dumps({"items": items, "passed_over": passed_over}))
