// Loss and step time of a job over its steps. Without this file the newest points stand in a table.
"use strict";

(() => {
  const place = document.getElementById("plot");
  if (!place || !window.uPlot) return;
  const EVERY_MS = 5000;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const width = () => Math.max(240, Math.min(900, place.clientWidth));
  const plots = new Map();

  function axis(label) {
    return { stroke: colour("--text"), grid: { stroke: colour("--line") }, ticks: { stroke: colour("--line") }, label };
  }

  function plot(title, name, dash) {
    return new window.uPlot({
      width: width(), height: 200, title,
      scales: { x: { time: false } },
      axes: [axis("step"), { ...axis(), size: 64 }],
      series: [{ label: "step" }, { label: title, stroke: colour(name), width: 2, dash, points: { show: false } }],
    }, [[], []], place);
  }

  async function update() {
    const answer = await fetch(place.dataset.series);
    if (!answer.ok) return;
    const found = await answer.json();
    if (found.step.length < 2) return;
    // A job that went back to a save makes steps once more: the newer points stand for them.
    const last = new Map(found.step.map((step, at) => [step, at]));
    const steps = [...last.keys()].sort((a, b) => a - b);
    const of = (values, factor) => steps.map((step) => {
      const value = values[last.get(step)];
      return value === null ? null : factor * value;
    });
    draw("loss", steps, of(found.loss, 1), "--first");
    draw("step time, ms", steps, of(found.step_s, 1000), "--second", [6, 4]);
  }

  function draw(title, steps, values, name, dash) {
    if (!plots.has(title)) {
      if (values.every((value) => value === null)) return;  // The page has a sentence in its place.
      plots.set(title, plot(title, name, dash));
    }
    plots.get(title).setData([steps, values]);
  }

  const again = () => update().catch(() => undefined);
  again();
  if (!place.dataset.ended) setInterval(again, EVERY_MS);
  addEventListener("resize", () => plots.forEach((each) => each.setSize({ width: width(), height: 200 })));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    plots.forEach((each) => each.destroy());
    plots.clear();
    again();
  });
})();
