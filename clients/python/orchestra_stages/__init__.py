"""Functions and classes in Python as stages of an orchestra workflow (`kind = "python"`).

    import orchestra_stages

    @orchestra_stages.stage(batch=32, outputs={"mean": ("float32", [3])})
    def colours(pixels):                           # inputs by name: read-only arrays [rows, ..]
        return {"mean": pixels.mean(axis=(2, 3))}  # outputs by name, with as many rows

`source` makes items of the rows that a function yields, `sink` hands parts of the results to one.

`import orchestra` is the same under a shorter name. By hand, `python stage.py --check` tries the stage out and
`python stage.py --bench` measures batch sizes.

The modules, in the order of a run:

    declare    what a script writes: the decorator `stage`, and `ItemError`
    sources    what a script writes for a source: the decorator `source`
    sinks      what a script writes for a sink: the decorator `sink`
    script     loads a script and picks its stage
    describe   tells the planner what the stage takes and gives
    worker     a worker process: connects, loads the script, answers runs
    listing    the process of a source: sends its rows
    writing    the process of a sink: takes parts
    wire       integers, texts and frames of the worker protocol
    batches    runs one batch: from its values and slots to the answer
    values     values that lie in no slot: texts, labels, pictures, lists
    slots      the shared memory of inputs and outputs
    calls      calls the function, and checks and converts what it returns
    loops      calls it again on what it has given
    alone      compares rows that are called alone with their batch
    errors     how an error is told
    hand       `--check` and `--bench` of a script that is started by hand
    check      what they do of a stage
    embedded   finds these modules where nothing is installed

Only `values`, `slots`, `calls`, `loops`, `alone`, `batches` and `check` import numpy. They are imported after the
script, when the variables that limit the threads of numpy are set.
"""

from .declare import ItemError, stage
from .sinks import sink
from .sources import source

__all__ = ["ItemError", "sink", "source", "stage"]
