#!/usr/bin/env python3
"""Prints the traces of a run as Jaeger gives them back: spans as trees, with times, attributes, links and events.

    scripts/jaeger-tree.py                     the last run: its own trace, and one of its items
    scripts/jaeger-tree.py --run ID            another run
    scripts/jaeger-tree.py --items 3           more of its items; 0 for none
    scripts/jaeger-tree.py --kept retried      items that are traced for this reason: ratio, failed, retried, slow, parent
    scripts/jaeger-tree.py --children 5        as many spans of one name below another; 0 for all
    scripts/jaeger-tree.py --jaeger URL        another Jaeger than http://localhost:16686

Only Jaeger's query API is used (/api/traces to find, /api/v3/traces to read), and only Python's standard library.
"""
import argparse
import json
import sys
import urllib.error
import urllib.parse
import urllib.request

RUN_ID = "orchestra.run.id"
# Said once, at the root.
REPEATED = {RUN_ID, "orchestra.pipeline", "orchestra.model", "process.pid"}


def get(base, path, **query):
    url = base + path + ("?" + urllib.parse.urlencode(query) if query else "")
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def find(base, limit, operation=None, **tags):
    query = {"service": "orchestra", "limit": limit, "lookback": "168h"}
    if operation:
        query["operation"] = operation
    if tags:
        query["tags"] = json.dumps(tags)
    return [trace["traceID"] for trace in get(base, "/api/traces", **query)["data"] or []]


def value(any_value):
    kind, plain = next(iter(any_value.items()))
    if kind == "intValue":
        return int(plain)
    return f"{plain:.3g}" if kind == "doubleValue" else plain


def attributes(of):
    return {a["key"]: value(a["value"]) for a in of.get("attributes", [])}


def read(base, trace):
    """All spans of a trace, by their id."""
    spans = {}
    for part in get(base, f"/api/v3/traces/{trace}")["result"]["resourceSpans"]:
        for scope in part["scopeSpans"]:
            for span in scope["spans"]:
                spans[span["spanId"]] = span
    return spans


def milliseconds(span):
    return (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / 1e6


class Printer:
    def __init__(self, spans, children, names):
        self.spans, self.most, self.names = spans, children, names
        self.below = {}
        for span in sorted(spans.values(), key=lambda s: int(s["startTimeUnixNano"])):
            self.below.setdefault(span.get("parentSpanId") or "", []).append(span)
        self.start = min(int(s["startTimeUnixNano"]) for s in spans.values())

    def roots(self):
        return [s for parent, below in self.below.items() if parent not in self.spans for s in below]

    def print(self, span, before="", lead="", below=""):
        begin = (int(span["startTimeUnixNano"]) - self.start) / 1e6
        shown = attributes(span)
        if lead:
            shown = {k: v for k, v in shown.items() if k not in REPEATED}
        error = " ERROR" if span.get("status", {}).get("code") in (2, "STATUS_CODE_ERROR") else ""
        words = " ".join(f"{k.removeprefix('orchestra.')}={v}" for k, v in shown.items())
        name = f"{before}{lead}{span['name']}{error}"
        print(f"{name:<34} {begin:>9.2f} +{milliseconds(span):>8.2f} ms  {words}".rstrip())
        inside = before + below
        for link in self.few(span.get("links", []), lambda l: attributes(l).get("orchestra.link")):
            if isinstance(link, str):
                print(f"{inside}  {link}")
                continue
            kind = attributes(link).get("orchestra.link", "")
            target = self.names.get(link["spanId"], f"trace {link['traceId'][:8]}..")
            print(f"{inside}  -> {kind}: {target}")
        for event in self.few(span.get("events", []), lambda e: e["name"]):
            if isinstance(event, str):
                print(f"{inside}  {event}")
                continue
            at = (int(event["timeUnixNano"]) - self.start) / 1e6
            words = " ".join(f"{k.removeprefix('orchestra.')}={v}" for k, v in attributes(event).items())
            print(f"{inside}  * {event['name']} at {at:.2f} ms  {words}".rstrip())
        rows = self.few(self.below.get(span["spanId"], []), lambda s: s["name"])
        for i, child in enumerate(rows):
            last = i == len(rows) - 1
            lead, down = ("└─ ", "   ") if last else ("├─ ", "│  ")
            if isinstance(child, str):
                print(f"{inside}{lead}{child}")
            else:
                self.print(child, inside, lead, down)

    def few(self, things, name):
        """Not all of many alike: the first of each name, what went wrong and what came of it, and how many more there are."""
        seen, rows, more = {}, [], {}
        for thing in things:
            kind = name(thing)
            seen[kind] = seen.get(kind, 0) + 1
            odd = "endTimeUnixNano" in thing and unusual(thing)
            if self.most and seen[kind] > self.most and not odd:
                more[kind] = more.get(kind, 0) + 1
            else:
                rows.append(thing)
        return rows + [f"... {n} more: {kind}" for kind, n in more.items()]


def unusual(span):
    shown = attributes(span)
    return span.get("status", {}).get("code") in (2, "STATUS_CODE_ERROR") or shown.get("orchestra.attempt", 1) != 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jaeger", default="http://localhost:16686", metavar="URL")
    parser.add_argument("--run", metavar="ID")
    parser.add_argument("--items", type=int, default=1)
    parser.add_argument("--kept", metavar="WHY")
    parser.add_argument("--children", type=int, default=2)
    options = parser.parse_args()
    base = options.jaeger.rstrip("/")
    try:
        tags = {RUN_ID: options.run} if options.run else {}
        runs = find(base, 1, "workflow.run", **tags)
        if not runs:
            sys.exit("jaeger-tree: Jaeger knows no such run: start one with `--otlp http://localhost:4318`")
        spans = read(base, runs[0])
        root = next(s for s in spans.values() if s["name"] == "workflow.run")
        run = attributes(root)[RUN_ID]
        wanted = {RUN_ID: run} | ({"orchestra.item.kept": options.kept} if options.kept else {})
        items = find(base, options.items, "item", **wanted) if options.items else []
        traces = [spans] + [read(base, trace) for trace in items[: options.items]]
    except (urllib.error.URLError, ConnectionError) as error:
        sys.exit(f"jaeger-tree: no Jaeger answers at {base} ({error}): scripts/jaeger.sh starts one")
    names = {}
    for trace in traces:
        for span_id, span in trace.items():
            shown = attributes(span)
            which = shown.get("orchestra.batch.id", shown.get("orchestra.item", ""))
            names[span_id] = f"{span['name']} {which}".rstrip()
    for trace in traces:
        printer = Printer(trace, options.children, names)
        for root in printer.roots():
            print(f"trace {root['traceId']}, {len(trace)} spans")
            printer.print(root)
            print(flush=True)


if __name__ == "__main__":
    main()
