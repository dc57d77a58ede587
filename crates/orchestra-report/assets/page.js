// @ts-check
// Draws the curves of the page, and lets its tables be sorted and filtered. All text was written and escaped before: nothing here makes markup of data.
"use strict";
(() => {
    /** @typedef {{ name: string, values: (number | null)[], strong: boolean }} Series */
    /** @typedef {{ x_label: string, unit: string, x: number[], series: Series[], marks: number[] }} Chart */

    const COLORS = ["#2f7ed8", "#e07b00", "#2a9d4a", "#c2418f", "#7a5bd0", "#00939b", "#b8860b", "#d64545"];
    /** More curves than this are told apart by their names alone. */
    const MOST_COLORED = 8;
    const HEIGHT = 220;

    /** @param {string} name */
    const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

    /** @param {HTMLElement} plot */
    function draw(plot) {
        const data = plot.parentElement?.querySelector("script");
        if (!data) return;
        const chart = /** @type {Chart} */ (JSON.parse(data.textContent || "null"));
        // Values over time are counts and rates, of which nothing is none; those of steps lie anywhere.
        /** @type {(_u: unknown, _least: number, most: number) => [number, number]} */
        const fromZero = (_u, _least, most) => [0, most > 0 ? most * 1.1 : 1];
        const overTime = chart.x_label === "seconds";
        const many = chart.series.length > MOST_COLORED;
        const axis = { stroke: color("--soft"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") } };
        const series = chart.series.map((one, at) => ({
            label: one.name,
            stroke: many ? (one.strong ? COLORS[1] : color("--wait")) : COLORS[at % COLORS.length],
            width: one.strong ? 3 : 1.5,
            spanGaps: true,
            points: { show: chart.x.length < 40 },
        }));
        /** @param {any} u */
        const marks = (u) => {
            u.ctx.strokeStyle = color("--open");
            for (const mark of chart.marks) {
                const x = Math.round(u.valToPos(mark, "x", true));
                u.ctx.beginPath();
                u.ctx.moveTo(x, u.bbox.top);
                u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
                u.ctx.stroke();
            }
        };
        plot.replaceChildren();
        // @ts-ignore: the library is a script before this one.
        new uPlot({
            width: Math.max(plot.clientWidth, 200),
            height: HEIGHT,
            scales: { x: { time: false }, y: overTime ? { range: fromZero } : {} },
            axes: [{ ...axis, label: chart.x_label, labelSize: 20, size: 40 }, { ...axis, size: 60 }],
            series: [{ label: chart.x_label }, ...series],
            legend: { show: !many, live: false },
            hooks: { draw: [marks] },
        }, [chart.x, ...chart.series.map((one) => one.values)], plot);
    }

    /** @param {ParentNode} part */
    const drawAll = (part) => part.querySelectorAll(".plot").forEach((plot) => draw(/** @type {HTMLElement} */ (plot)));

    /**
     * @param {HTMLTableRowElement} row
     * @param {number} column
     */
    function key(row, column) {
        const cell = row.cells[column];
        const number = cell?.dataset.n;
        return number === undefined ? (cell?.textContent || "").toLowerCase() : Number(number);
    }

    /** @param {HTMLTableElement} table */
    function sortable(table) {
        const heads = [...table.querySelectorAll("thead th")];
        heads.forEach((head, column) => {
            const button = document.createElement("button");
            button.type = "button";
            button.textContent = head.textContent;
            button.title = "Sort by " + head.textContent;
            head.replaceChildren(button);
            button.addEventListener("click", () => {
                const down = head.getAttribute("aria-sort") === "ascending";
                heads.forEach((other) => other.removeAttribute("aria-sort"));
                head.setAttribute("aria-sort", down ? "descending" : "ascending");
                const rows = [...table.tBodies[0].rows].map((row) => ({ row, key: key(row, column) }));
                rows.sort((a, b) => (a.key < b.key ? -1 : a.key > b.key ? 1 : 0) * (down ? -1 : 1));
                table.tBodies[0].append(...rows.map((one) => one.row));
            });
        });
    }

    /** @param {HTMLTableElement} table */
    function filterable(table) {
        const box = table.closest(".table");
        const rows = [...table.tBodies[0].rows];
        if (!box || rows.length < 8) return;
        box.setAttribute("tabindex", "0");
        const texts = new Map(rows.map((row) => [row, (row.textContent || "").toLowerCase()]));
        const label = document.createElement("label");
        label.className = "filter";
        const input = document.createElement("input");
        input.type = "search";
        const shown = document.createElement("span");
        shown.setAttribute("role", "status");
        label.append("Filter: " + (table.caption?.textContent || ""), input, shown);
        input.addEventListener("input", () => {
            const asked = input.value.toLowerCase();
            let n = 0;
            for (const [row, text] of texts) {
                row.hidden = !text.includes(asked);
                n += row.hidden ? 0 : 1;
            }
            shown.textContent = asked ? n + " of " + rows.length : "";
        });
        box.before(label);
    }

    /**
     * Boxes are in pixels of the picture as the browser shows it.
     * @param {ParentNode} part
     */
    function fitBoxes(part) {
        part.querySelectorAll(".picture").forEach((picture) => {
            const image = picture.querySelector("img");
            const boxes = picture.querySelector("svg");
            if (!image || !boxes) return;
            const fit = () => boxes.setAttribute("viewBox", "0 0 " + image.naturalWidth + " " + image.naturalHeight);
            if (image.complete) fit();
            else image.addEventListener("load", fit);
        });
    }

    /** @param {ParentNode} part */
    function dress(part) {
        part.querySelectorAll("table").forEach((table) => {
            sortable(table);
            filterable(table);
        });
        fitBoxes(part);
        drawAll(part);
    }

    /**
     * Parts that a server has written, and escaped as those of the page. What somebody works in stays as it is.
     * @param {string} address
     */
    function follow(address) {
        const events = new EventSource(address);
        const state = document.getElementById("live");
        /** @param {string} text */
        const say = (text) => {
            if (state && state.textContent !== text) state.textContent = text;
        };
        events.onopen = () => say("Live: what changes is shown as it comes.");
        events.onerror = () => say("The connection has ended, most likely with the run: this is the last that it said.");
        events.onmessage = (event) => {
            for (const [id, html] of Object.entries(JSON.parse(event.data))) {
                const part = document.getElementById(id);
                if (!part || part.contains(document.activeElement)) continue;
                part.innerHTML = html;
                part.hidden = html === "";
                dress(part);
            }
        };
    }

    dress(document);
    let width = window.innerWidth;
    window.addEventListener("resize", () => {
        if (window.innerWidth !== width) drawAll(document);
        width = window.innerWidth;
    });
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll(document));
    if (document.body.dataset.events) follow(document.body.dataset.events);
    document.documentElement.dataset.ready = "true";
})();
