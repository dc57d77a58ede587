"""A function or a class in Python as a stage of an orchestra workflow (`kind = "python"`). Needs numpy, and nothing else.

    @orchestra.stage(batch=32, outputs={"mean": ("float32", [3])})
    def colours(pixels):                                # inputs by name: read-only arrays [rows, ..] in shared memory
        return {"mean": pixels.mean(axis=(2, 3))}       # outputs by name, as many rows

In workers this file speaks docs/guide/worker-protocol.md for the script. `python stage.py --check` calls it on zeros, and says what it takes and gives.
"""
import ast, atexit, contextlib, ctypes, faulthandler, functools, hashlib, importlib.util, inspect, json, mmap, operator  # noqa: E401
import os, select, socket, struct, sys, threading, time, traceback  # noqa: E401

PROTOCOL = 15
DTYPES = ["float32", "float16", "int64", "int32", "uint8", "bool", "float64", "int16"]  # Their places are their numbers in frames.
SHORT = {"f32": "float32", "f16": "float16", "i64": "int64", "i32": "int32", "u8": "uint8", "f64": "float64", "i16": "int16"}
ANY = {"text": str, "bytes": bytes, "list": list, "picture": lambda: np.zeros([8, 8, 3], "uint8")}  # What --check gives of columns that are no tensors.
_stages = []
_rss = lambda: int(open("/proc/self/statm").read().split()[1]) * 4096  # noqa: E731
_is_memory = lambda error: isinstance(error, MemoryError) or type(error).__name__ in ("MemoryError", "OutOfMemoryError")  # noqa: E731

class ItemError(Exception):
    """Rejects row `row` of the batch, counted from 0; the others are run again without it."""
    def __init__(self, row, why):
        super().__init__(f"row {row}: {why}")
        self.row, self.why = operator.index(row), why

def stage(code=None, *, outputs=None, inputs=None, batch=None, gpu=False, each=False):
    """Makes a stage of a function, or of a class with `__call__`, which is made once in each worker. `outputs` and `inputs` are
    `{"name": ("float32", [3, None])}`: type and shape of a row, with `None` where an output is known after the call and an input is any; an output
    may be `"text"`, a list of `str`, or `{"box": ("float32", [4]), "name": "text"}`, for each row a list of such dicts. Inputs that are not
    declared may be any column: what is no array of one shape comes as a list, for each row `str`, `bytes`, an array (of a picture
    `[height, width, channels]`), a list of dicts, or `None` where it is missing.
    `batch`: the most rows of a call. `gpu`: it runs on the GPUs of the run. `each`: it is a function of one row, and an error fails that row."""
    if code is None:
        return lambda code: stage(code, outputs=outputs, inputs=inputs, batch=batch, gpu=gpu, each=each)
    is_class = inspect.isclass(code)
    call = code.__call__ if is_class else code
    if inspect.iscoroutinefunction(call) or inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        raise TypeError(f"{code.__name__}: it must return what it gives, not await or yield it; what is many for a row is a list")
    parameters = list(inspect.signature(call).parameters.values())[is_class:]
    names = [p.name for p in parameters if p.default is p.empty]  # What has a default is no input.
    if not names or any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.POSITIONAL_ONLY) for p in parameters) or not set(inputs or {}) <= set(names):
        raise TypeError(f"{code.__name__}: each input must be an argument of its own, which may be named; `inputs` may name these alone: {', '.join(names)}")
    takes = [_tensor(name, (inputs or {}).get(name, (None, None))) for name in names]
    if any(one["dtype"] in ("text", "list") for one in takes):
        raise TypeError(f"{code.__name__}: only arrays are declared as inputs; what is not declared may be any column")
    gives = None if outputs is None else [_tensor(name, of) for name, of in outputs.items()]
    _stages.append({"name": code.__name__, "inputs": takes, "outputs": gives, "batch": batch, "gpu": gpu, "each": each, "code": code})
    if code.__module__ == "__main__" and "--check" in sys.argv and len(_stages) == 1:
        atexit.register(_check)  # The rest of the script is there then.
    return code
def _tensor(name, of):
    of = (of, None) if isinstance(of, (str, type)) and of not in ("text", str) else of
    if isinstance(of, dict) and of:
        return {"name": name, "dtype": "list", "shape": [], "columns": [_tensor(column, one) for column, one in of.items()]}
    if of in ("text", str) or isinstance(of, tuple) and of[0] in ("text", str):
        return {"name": name, "dtype": "text", "shape": []}
    dtype, shape = SHORT.get(of[0], getattr(of[0], "__name__", of[0])), of[1]
    if (dtype, shape) != (None, None) and dtype not in DTYPES:
        raise TypeError(f"`{name}` cannot be {dtype}; types are {', '.join(DTYPES)}, with a shape, and of outputs text")
    if not all(dim is None or isinstance(dim, int) and dim >= 0 for dim in shape or ()):
        raise TypeError(f"`{name}`: {shape} is no shape of a row: a list of sizes, or of None")
    return {"name": name, "dtype": dtype, "shape": None if shape is None else list(shape)}
def _declared(one):  # An output as the planner says it.
    if one["dtype"] == "list":
        return {**one, "columns": [_declared(column) for column in one["columns"]]}
    return _tensor(one["name"], "text" if one["dtype"] == "text" else (one["dtype"], one["shape"]))
def _load(script, *name):
    sys.path[0], sys.modules["orchestra"] = os.path.dirname(script), sys.modules[__name__]
    spec = importlib.util.spec_from_file_location(os.path.splitext(os.path.basename(script))[0], script)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return _pick(script, *name)
def _pick(script, *name):
    global np  # Imported when the script is there, and for workers when the threads of its libraries are set.
    import numpy as np
    found, names = [one for one in _stages if one["name"] in (name or [one["name"]])], ", ".join(one["name"] for one in _stages)
    if len(found) != 1:
        raise LookupError(f"it has the stages {names}: name one with function = \"..\"" if names else "no function has @orchestra.stage(..)")
    return found[0]
def _imported(files):  # These, and what their code imports of the folder at whatever time, such as in a function.
    for file in files:  # It grows.
        for node in ast.walk(ast.parse(open(file, "rb").read())) if file.endswith(".py") else ():
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                level, module = getattr(node, "level", 0), getattr(node, "module", None)
                folder = os.path.join(os.path.dirname(file), *[".."] * (level - 1)) if level else sys.path[0]
                for parts in (f"{module}.{one.name}".split(".") if module else one.name.split(".") for one in node.names):
                    stems = [os.path.normpath(os.path.join(folder, *parts[:n + 1])) for n in range(len(parts))]
                    found = [f for stem in stems for f in (f"{stem}.py", os.path.join(stem, "__init__.py")) if os.path.isfile(f)]
                    files += [f for f in found if f not in files and f.startswith(sys.path[0] + os.sep)]
    return files
def _describe(to, script, *name):  # What the planner asks for: the declaration, and the files that make the results; or what is wrong.
    try:
        answer = {key: value for key, value in _load(script, *name).items() if key != "code"}
        modules = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
        own = sorted(_imported([f for f in modules if f.startswith(sys.path[0] + os.sep) and "site-packages" not in f]))
        answer["files"] = [(os.path.relpath(f, sys.path[0]), hashlib.sha256(open(f, "rb").read()).hexdigest()) for f in own]
    except BaseException as error:
        answer = {"error": _words(error)}
    os.write(to, json.dumps(answer, ensure_ascii=False).encode(errors="replace"))
    os._exit(0)  # Threads that the script has started would go on.
def _made(of):  # What is called with a batch, or by `_each` with its rows.
    code = of["code"]() if inspect.isclass(of["code"]) else of["code"]
    return functools.partial(_each, code) if of["each"] else code
def _each(code, rows, inputs, outputs):  # The arrays of the outputs, of rows that are called and converted one by one.
    given, names = [], {one["name"] for one in outputs}
    for row in range(rows):
        try:
            one = code(**{name: of[row] for name, of in inputs.items()})
            if not isinstance(one, dict) or one.keys() != names:
                raise ValueError(f"it must give a dict of {[*names]}, and gave {[*one] if isinstance(one, dict) else type(one).__name__}")
            given.append([_value(output, one[output["name"]]) for output in outputs])
        except Exception as error:
            if _is_memory(error):
                raise
            raise ItemError(row, error.why if isinstance(error, ItemError) else _words(error)) from error
    return [_joined(output, rows, list(values)) for output, values in zip(outputs, zip(*given))]
def _joined(output, rows, values):
    if output["dtype"] in ("text", "list"):
        joined = np.empty(rows, dtype=object)
        for row, value in enumerate(values):
            joined[row] = value
        return joined
    try:
        return np.stack(values)
    except ValueError as error:  # Several shapes.
        error.kind = 4
        raise
def _called(code, rows, inputs, outputs):  # The arrays of the outputs, in their order, and checked: as many rows, of the declared type and shape.
    if isinstance(code, functools.partial):
        return code(rows, inputs, outputs)
    given, arrays = code(**inputs), []
    if not isinstance(given, dict) or given.keys() != {one["name"] for one in outputs}:
        given = list(given) if isinstance(given, dict) else type(given).__name__
        raise ValueError(f"it must give a dict of {[one['name'] for one in outputs]}, and gave {given}")
    for one, value in [(one, given[one["name"]]) for one in outputs]:
        if one["dtype"] in ("text", "list"):
            arrays.append(_listed(one, rows, value))
            continue
        try:
            array, dtype, shape = _array(value, one["dtype"]), one["dtype"], [rows, *one["shape"]]
        except ValueError as error:  # A list of arrays of several shapes.
            error.kind = 4 if rows > 1 else 1
            raise
        if array.ndim != len(shape) or any(want not in (None, n) for want, n in zip(shape, array.shape)):
            error = ValueError(f"output `{one['name']}` of {rows} rows must have the shape {shape}, and has {[*array.shape]}")
            error.kind = 4 if rows > 1 else 1  # Each row runs alone, since a part of the batch might fit by chance.
            raise error
        for row, *place in [] if _is_plain(value) else np.argwhere(np.ma.getmask(np.ma.asarray(value))).tolist():
            raise ItemError(row, f"output `{one['name']}` is masked at {place} of its row: say what stands there, with .filled(..)")
        arrays.append(array if array.dtype == dtype else _converted(array, one["name"], np.dtype(dtype)))
    return arrays
def _is_plain(value):  # Nothing in it is masked; to look at each element of a list takes longer than most functions.
    elements = {type(value)} if isinstance(value, np.ndarray) else set(map(type, value)) if isinstance(value, (list, tuple)) else {None}
    return all(one in (np.ndarray, int, float, bool) or one is not None and issubclass(one, np.generic) for one in elements)
def _array(value, dtype):  # Integers of Python may stand for floats that hold them.
    array = np.asarray(value)
    if isinstance(value, (np.ndarray, np.generic)) or array.dtype.kind != "i" or np.dtype(dtype).kind != "f":
        return array
    floats = array.astype(dtype)
    return floats if (abs(array) < 2**53).all() and (floats == array).all() else array
def _listed(output, rows, given):  # Texts or lists, one for each row.
    if not isinstance(given, (list, tuple, np.ndarray)) or len(given) != rows:
        what = type(given).__name__ + (f" of {len(given)}" if hasattr(given, "__len__") else "")
        error = ValueError(f"output `{output['name']}` of {rows} rows must be a list of as many {output['dtype']}s, and is {what}")
        error.kind = 4 if rows > 1 else 1
        raise error
    if output["dtype"] == "text" and set(map(type, given)) == {str} and _are_text("".join(given)):
        return np.array(given, dtype=object)  # What each text would come to.
    values = []
    for row, value in enumerate(given):
        try:
            values.append(_value(output, value))
        except (ItemError, TypeError, ValueError) as error:
            raise ItemError(row, error.why if isinstance(error, ItemError) else str(error)) from None
    return _joined(output, rows, values)
def _are_text(characters):
    with contextlib.suppress(UnicodeEncodeError):
        return characters.isascii() or characters.encode() is not None
    return False
def _value(of, value):  # As it is declared: a text, an array, or a list of tuples of such.
    name = of["name"]
    if of["dtype"] == "text":
        if not isinstance(value, str):
            raise TypeError(f"output `{name}` is declared as text, and is {type(value).__name__}, not str")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"output `{name}` is no text: {error}") from None
        return str.__str__(value)
    if of["dtype"] == "list":
        names = [column["name"] for column in of["columns"]]
        for row in value:
            if not isinstance(row, dict) or row.keys() != set(names):
                raise TypeError(f"a row of output `{name}` must be a dict of {names}, and is {[*row] if isinstance(row, dict) else type(row).__name__}")
        return [tuple(_value(column, row[column["name"]]) for column in of["columns"]) for row in value]
    array = _array(value, of["dtype"])
    if array.ndim != len(of["shape"]) or any(want not in (None, n) for want, n in zip(of["shape"], array.shape)):
        raise ValueError(f"output `{name}` must have the shape {of['shape']}, and has {[*array.shape]}")
    return array if array.dtype == of["dtype"] else _converted(array[np.newaxis], name, np.dtype(of["dtype"]))[0]
def _packed(value):  # Without types: they are declared.
    if isinstance(value, list):
        return _int(len(value)) + b"".join(_packed(one) for row in value for one in row)
    return _text(value) if isinstance(value, str) else _int(*value.shape) + _text(value.tobytes())
def _differs(mine, alone, gpu):  # What a row has in its batch is not what it has alone, beyond what is rounded otherwise in another size; or None.
    if isinstance(mine, str):
        return None if mine == alone else f"{mine[:80]!r} in its batch, and {alone[:80]!r} alone"
    if isinstance(mine, (list, tuple)) or mine.dtype == object:
        if len(mine) != len(alone):
            return f"{len(mine)} rows in its batch, and {len(alone)} alone"
        return next(filter(None, (_differs(one, other, gpu) for one, other in zip(mine, alone))), None)
    if mine.shape != alone.shape:
        return f"the shape {[*mine.shape]} in its batch, and {[*alone.shape]} alone"
    part, least = (1e-2, 1e-3) if gpu or mine.dtype == "float16" else (2e-4, 1e-5)
    exact = mine.dtype.kind != "f"
    near = mine == alone if exact else np.isclose(mine.astype("float64"), alone.astype("float64"), part, least, equal_nan=True)
    where = np.argwhere(~near)
    if len(where) <= np.count_nonzero(alone) // 1000 and not (np.isnan(mine) != np.isnan(alone)).any():
        return None  # Few: a choice that was tipped over.
    place = tuple(where[0].tolist())
    return f"{mine[place]}{f' at {[*place]}' if place else ''} in its batch, and {alone[place]} alone"
def _converted(array, name, dtype):  # By the rule of numbers.md: a number that the type cannot hold fails its row.
    if not np.can_cast(array.dtype, dtype, "safe") and array.dtype.kind not in ("iuf" if dtype.kind in "iu" else dtype.kind):
        raise ValueError(f"output `{name}` is declared as {dtype}, and is {array.dtype}: use .astype(\"{dtype}\")")
    made = array.astype(dtype)
    if array.dtype.kind == "f":  # Whole numbers from 2^53 on may have been rounded before.
        wrong = np.isinf(made) & np.isfinite(array) if dtype.kind == "f" else (made != array) | (np.abs(array) >= 2**53)
    else:
        wrong = (np.abs(made) >= 2**53) & (np.abs(array) != 2**53) if dtype.kind == "f" else made != array
    for row, *place in np.argwhere(wrong).tolist():
        at, why = array[(row, *place)], "; a float from 2^53 on may stand for another integer"
        why = why if dtype == "int64" and array.dtype.kind == "f" and 2**53 <= abs(at) < 2**63 else ""
        raise ItemError(row, f"output `{name}` is declared as {dtype}, which cannot hold {at} at {place} of its row{why}")
    return made
class _Bytes:  # Reads what bincode wrote: integers of variable length, little-endian.
    def __init__(self, data):
        self.data, self.at = data, 0
    def text(self):
        n = self.int()
        self.at += n
        return self.data[self.at - n:self.at]
    def int(self):
        first, self.at = self.data[self.at], self.at + 1
        if first < 251:
            return first
        self.at += 1 << (first - 250)
        return int.from_bytes(self.data[self.at - (1 << (first - 250)):self.at], "little")
    def float(self):
        self.at += 4
        return struct.unpack_from("<f", self.data, self.at - 4)[0]
    def list(self, item):
        return [item() for _ in range(self.int())]
    def dim(self):
        return self.int() if self.int() == 0 else None
    def value(self, of):  # A value of a row; a list of rows is one of dicts, by the names of its columns.
        data, at, kind = self.data, self.at + 2, self.data[self.at]
        if kind in (2, 3):  # As `text` and `int` do it, which takes three times as long.
            n = data[at - 1]
            if n > 250:
                n, at = int.from_bytes(data[at:at + (1 << (n - 250))], "little"), at + (1 << (n - 250))
            self.at = at + n
            return data[at:at + n].decode() if kind == 2 else data[at:at + n]
        self.at += 1
        if kind == 0:
            _, dtype, shape = self.text(), DTYPES[self.int()], self.list(self.int)
            return np.frombuffer(self.text(), dtype).reshape(shape)[()]
        if kind == 1:
            return self.list(lambda: {"label": self.text().decode(), "class": self.int(), "score": self.float()})
        if kind == 4:
            columns = of.get("optional", of)["list"]
            rows = self.list(lambda: [(column, self.value(column["ty"])) for column in columns[:self.int()]])
            return [{column["name"]: value for column, value in row if column["ty"] != "placement"} for row in rows]
        self.text()  # Of which kind it would be.
    def region(self):
        name, dtype, shape, _ = self.text().decode(), DTYPES[self.int()], self.list(self.dim), self.dim()
        return {"name": name, "dtype": dtype, "shape": shape, "offset": self.int(), "row_bytes": self.int()}
def _int(*numbers):
    return b"".join([bytes((n,)) if n < 251 else b"\xfb" + n.to_bytes(2, "little") if n < 1 << 16 else b"\xfc" + n.to_bytes(4, "little")
                     if n < 1 << 32 else b"\xfd" + n.to_bytes(8, "little") for n in numbers])
def _text(text):
    data = text.encode(errors="replace") if isinstance(text, str) else text
    return _int(len(data)) + data
def _lock_pages(maps):  # The GPU then copies from and to the slots by itself. Where that is refused, copies only take longer.
    try:
        cuda, context, device = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_int()
        def call(name, *arguments):
            if code := getattr(cuda, name)(*arguments):
                raise OSError(f"{name} gives {code}")
        call("cuInit", 0), call("cuCtxGetCurrent", ctypes.byref(context)), call("cuDeviceGet", ctypes.byref(device), 0)
        if not context:  # The script has made none: what it makes later is mostly this one.
            call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device), call("cuCtxSetCurrent", context)
        for what, memory, flags in filter(all, zip(("input", "output"), maps, (9, 1))):  # For every context; of the inputs the GPU only reads.
            code = cuda.cuMemHostRegister_v2(ctypes.c_void_p(np.frombuffer(memory, "u1").ctypes.data), ctypes.c_size_t(len(memory)), flags)
            print(f"the {what} slots are " + (f"not page-locked: cuMemHostRegister_v2 gives {code}" if code else "page-locked"))
    except (OSError, AttributeError) as error:
        print(f"the slots are not page-locked: {error}")
def _is_broken():  # Some errors of a GPU stay with the process, and all its calls fail. Without CUDA (3) or a context (201) it has none.
    with contextlib.suppress(OSError, AttributeError):
        return ctypes.CDLL("libcuda.so.1").cuCtxSynchronize() not in (0, 3, 201)

class _Worker:
    """Speaks the protocol: the main thread reads, loads and runs; a second one beats, and ends the process when the parent hangs up."""
    def __init__(self):
        self.socket, self.lock, self.rss = socket.socket(fileno=3), threading.Lock(), 0
        self.ran, self.spent, self.n_compared, self.is_unsteady = 0, 0, 0, False  # Seconds of batches and of comparisons, see `compare`.
        self.read = self.socket.makefile("rb").read
        visible = b"\1" + _text(os.environ["CUDA_VISIBLE_DEVICES"]) if "CUDA_VISIBLE_DEVICES" in os.environ else b"\0"
        self.send(_int(0, PROTOCOL) + _text(os.environ.get("ORCHESTRA_BUILD", "")) + _int(os.getpid()) + visible)
        threading.Thread(target=self.watch, daemon=True).start()
    def send(self, frame):
        with self.lock:
            self.socket.sendall(len(frame).to_bytes(4, "little") + frame)
    def watch(self):
        poll = select.poll()
        poll.register(3, select.POLLRDHUP)
        try:
            while not poll.poll(250):
                self.rss = _rss()
                self.send(_int(5))
        finally:
            os._exit(0)
    def frame(self):  # Without one the parent is gone.
        return _Bytes(self.read(int.from_bytes(self.read(4) or os._exit(0), "little")))
    def serve(self, script, *name):
        frame, began = self.frame(), time.perf_counter_ns()
        _, told, self.device = frame.int(), json.loads(frame.text()), frame.int() and frame.text()
        self.outputs = [_declared(one) for one in told["outputs"]]
        self.values, self.lists = told["values"], {}  # Inputs that lie in no slot, and those of the run.
        threads, _, _ = frame.int(), frame.int(), frame.list(frame.int)
        _, slots, self.inputs = frame.int(), frame.int(), frame.list(frame.region)
        self.places, self.steps = frame.list(lambda: frame.list(frame.region)), (frame.int(), frame.int())  # An option is a list.
        self.dynamic = [at for at, place in enumerate(self.places) if not place]
        [os.environ.setdefault(f"{who}_NUM_THREADS", str(threads)) for who in ("OMP", "OPENBLAS", "MKL")]
        try:
            of = _load(script, *name)
            self.code, self.is_unsteady = _made(of), of["each"]  # A row that is called alone has nothing of others.
            [one.update(dtype=np.dtype(one["dtype"])) for one in (*self.outputs, *self.inputs, *sum(self.places, [])) if one["dtype"] not in ("text", "list")]
            memory = zip((4, 5), self.steps, (mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE))
            self.maps = [step and mmap.mmap(fd, -(-step * slots // 4096) * 4096, prot=kind) for fd, step, kind in memory]
            self.device and _lock_pages(self.maps)
        except BaseException as error:
            self.send(_int(2, 3 if _is_memory(error) else 2) + _text(_words(error))), os._exit(69)
        self.rss = _rss()  # Measured now and with every beat: after each batch it would cost more than a small batch.
        loaded = _int(1, 1) + _text("cuda" if self.device else "cpu") + _int(1)  # One node on one provider.
        loaded += _text(f"python {sys.version.split()[0]}, numpy {np.__version__}") + _int(0, time.perf_counter_ns() - began, self.rss)
        self.send(loaded)
        while (kind := (frame := self.frame()).int()) in (1, 2):
            self.run(*(frame.int() for _ in range(6)), frame if kind == 2 else None)
        os._exit(76)  # It is no `Run`.
    def run(self, batch, _, slot, output_slot, first, rows, beside):
        spent, broken = [0, 0, 0], False
        try:
            beside = beside and _Bytes(beside.text())
            values = [[beside.value(of["ty"]) for of in self.values] for _ in range(rows)] if beside else []
            self.lists = {of["name"]: list(column) for of, column in zip(self.values, zip(*values))}
            arrays, took = self.call(slot, output_slot, first, rows, spent), spent[1] / 1e9
            answer = _int(3, batch, len(arrays))
            for at, array in zip(self.dynamic, arrays):
                if array.dtype == object:  # Texts or lists: the bytes of each behind their number.
                    each = [one.encode() if type(one) is str else _packed(one) for one in array.tolist()]
                    data = b"".join([part for one in each for part in (len(one).to_bytes(4, "little"), one)])
                    answer += _int(at, DTYPES.index("uint8"), 1, len(data)) + _text(data)
                else:
                    answer += _int(at, DTYPES.index(array.dtype.name), array.ndim, *array.shape) + _text(array.tobytes())
            answer += _int(*spent, self.rss)
            self.compare(slot, output_slot, first, rows, took, arrays)
        except BaseException as error:
            kind, why, broken = [0 if _is_memory(error) else getattr(error, "kind", 1)], _words(error), self.device and _is_broken()
            if isinstance(error, ItemError) and 0 <= error.row < rows:
                kind, why = [3, error.row], str(error.why)
            elif rows == 1:
                traceback.print_exc()
            answer = _int(4, batch, *([2] if broken else kind)) + _text(why) + _int(*spent)
        self.send(answer), broken and os._exit(71)
    def call(self, slot, output_slot, first, rows, spent):  # Outputs of fixed shape go to their slot; the others are given back.
        inputs, began = self.given(slot, first, 0, rows), time.perf_counter_ns()
        arrays, ran, dynamic = _called(self.code, rows, inputs, self.outputs), time.perf_counter_ns(), []
        for array, place, output in zip(arrays, self.places, self.outputs):
            if place:
                self.rows(1, output_slot, place[0], first, rows)[...] = array
            else:
                dynamic.append(array if array.dtype == object else array.astype(output["dtype"], copy=False))
        spent[1] += ran - began
        spent[2] += time.perf_counter_ns() - ran
        return dynamic
    def compare(self, slot, output_slot, first, rows, took, dynamic):  # Rows alone, of the first batch and for a 256th of the time of others.
        self.ran += took
        if rows < 2 or self.is_unsteady or self.spent > max(0.01, self.ran / 256):
            return
        began, dynamic = time.perf_counter(), iter([np.array(array) for array in dynamic])  # The next call may write over what it has given.
        batch = [self.rows(1, output_slot, place[0], first, rows) if place else next(dynamic) for place in self.places]
        for row in [(n + self.n_compared) % rows for n in range(rows)]:
            if why := self.differs(batch, slot, first, row):
                error = ValueError(f"{why} (item {row} of a batch of {rows}): the items of a batch change each other")
                error.kind = 5
                raise error
            if self.is_unsteady or time.perf_counter() - began > max(took, 0.005 if self.n_compared else 0.05):
                break
        self.spent, self.n_compared = self.spent + time.perf_counter() - began, self.n_compared + 1
    def differs(self, batch, slot, first, row):
        def alone():
            return [np.array(a) for a in _called(self.code, 1, self.given(slot, first, row, 1), self.outputs)]
        try:
            one = alone()
            found = [_differs(mine[row], of[0], self.device) for mine, of in zip(batch, one)]
            if not any(found):
                return None
            self.is_unsteady = any(_differs(a, b, self.device) for a, b in zip(one, alone()))  # Random, or it counts: nothing can be told.
            return None if self.is_unsteady else next(f"its output `{out['name']}` has {why}" for out, why in zip(self.outputs, found) if why)
        except Exception as error:  # A row that fails alone tells nothing, but for its shape.
            return str(error) + " alone" if getattr(error, "kind", None) else None
    def given(self, slot, first, row, rows):  # To the function, from this row of the run on.
        arrays = {at["name"]: self.rows(0, slot, at, first + row, rows) for at in self.inputs}
        return arrays | {name: of[row:row + rows] for name, of in self.lists.items()}
    def rows(self, side, slot, at, first, rows):  # Of a tensor where they lie: in the inputs (side 0), which are read-only, or in the outputs.
        offset = self.steps[side] * slot + at["offset"] + at["row_bytes"] * first
        return np.ndarray((rows, *at["shape"]), at["dtype"], self.maps[side], offset)

def _said(error):
    try:
        return str(error)
    except Exception as other:
        return f"its words cannot be read, {type(other).__name__}"
def _words(error):  # In a line, with the last place of it that is in the folder of the script; and with the sandbox, if that may have refused something.
    files = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    own = [f" ({os.path.basename(name)}:{line})" for name, line in files if os.path.dirname(name) == sys.path[0]]
    refused, words = error, ("permission denied", "not permitted", "no usable temporary directory")
    while not (refused is None or isinstance(refused, (PermissionError, socket.gaierror)) or any(word in _said(refused).lower() for word in words)):
        refused = refused.__cause__ or refused.__context__
    confined = "; " + os.environ["ORCHESTRA_CONFINED"] if refused is not None and "ORCHESTRA_CONFINED" in os.environ else ""
    return f"{type(error).__name__}: {_said(error)[:4096]}{own[-1] if own else ''}{confined}"
def _check():
    status, said = 0, dict(argument.split("=", 1) for argument in sys.argv if "=" in argument)  # x=float32:3,32,32
    try:
        of, inputs = _pick(sys.argv[0], *[name for name in sys.argv[1:] if "=" not in name and name[0] != "-"]), {}
        rows, outputs = of["batch"] or 8, of["outputs"]
        for one in of["inputs"]:
            dtype, _, shape = said.get(one["name"], "").partition(":")
            if dtype in ANY:
                inputs[one["name"]] = [ANY[dtype]()] * rows
                continue
            one = _tensor(one["name"], (dtype, [int(n) for n in shape.split(",") if n])) if dtype else one
            if one["shape"] is None:
                raise ValueError(f"say what `{one['name']}` is: --check {one['name']}=float32:3,32,32, or ={', ='.join(ANY)}, or `inputs` of the decorator")
            inputs[one["name"]] = np.zeros([rows, *(n or 1 for n in one["shape"])], one["dtype"])
        code = _made(of)
        if outputs is None:
            if isinstance(code, functools.partial):
                raise ValueError("declare `outputs` in the decorator: they are found out of functions of batches alone")
            given = [(name, value, np.asarray(value)) for name, value in code(**inputs).items()]
            outputs = [_tensor(name, "text" if array.dtype.kind in "UO" else (str(array.dtype), array.shape[1:])) for name, _, array in given]
            shown = ['"text"' if o["dtype"] == "text" else f'("{o["dtype"]}", {o["shape"]})' for o in outputs]
            print("declare outputs={" + ", ".join(f'"{o["name"]}": {of}' for o, of in zip(outputs, shown)) + "}")
        _called(code, rows, inputs, outputs)
        began = time.perf_counter()
        arrays, took = _called(code, rows, inputs, outputs), time.perf_counter() - began
        for word, named in (("takes", inputs.items()), ("gives", zip((o["name"] for o in outputs), arrays))):
            kind = lambda a: {str: "text", bytes: "bytes"}.get(type(a[0]), "list")  # noqa: E731
            shown = [f"{name} " + (kind(a) if isinstance(a, list) or a.dtype == object else f"{a.dtype}{[*a.shape[1:]]}") for name, a in named]
            print(of["name"], word, ", ".join(shown), "for each row")
        print(f"{rows} rows of zeros take {took * 1e3:.3f} ms")
    except BaseException as error:
        status = int(not isinstance(error, ItemError) or not isinstance(error.__cause__, (ItemError, type(None))))  # It may reject zeros.
        print(f"{os.path.basename(sys.argv[0])}: {_words(error)}", file=sys.stderr)
    sys.stdout.flush(), os._exit(status or int(hasattr(sys, "last_value")))  # The script itself may have failed.
def _stay():  # No other program from now on: one that a thread starts outlives the run, since the kernel forgets whose end it dies with.
    execs = {"x86_64": (59, 322), "aarch64": (221, 281)}[os.uname().machine]
    steps = (0x20, 0, 0, 0), (0x15, 2, 0, execs[0]), (0x15, 1, 0, execs[1]), (6, 0, 0, 0x7FFF0000), (6, 0, 0, 0x50001)
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    ctypes.CDLL(None).prctl(22, 2, struct.pack("HP", len(steps), ctypes.addressof(code)), 0, 0) and sys.exit("the kernel has no filter of calls")

if __name__ == "__main__":
    _out, _ = os.dup(1), os.dup2(2, 1)  # What a script prints goes to the log.
    faulthandler.enable(all_threads=False), "ORCHESTRA_CONFINED" in os.environ and _stay()
    _describe(_out, *sys.argv[2:]) if sys.argv[1] == "describe" else _Worker().serve(*sys.argv[2:])
