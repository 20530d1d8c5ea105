// Loss and step time of a job over its steps. Without this file the newest points stand in a table.
"use strict";

(() => {
  const place = document.getElementById("plot");
  if (!place || !window.uPlot) return;
  const EVERY_MS = 5000;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const width = () => Math.max(240, Math.min(900, place.clientWidth));
  const plots = [];

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
    if (!plots.length) plots.push(plot("loss", "--first"), plot("step time, ms", "--second", [6, 4]));
    // A job that went back to a save makes steps once more: the newer points stand for them.
    const last = new Map(found.step.map((step, at) => [step, at]));
    const steps = [...last.keys()].sort((a, b) => a - b);
    const of = (values, factor) => steps.map((step) => {
      const value = values[last.get(step)];
      return value === null ? null : factor * value;
    });
    plots[0].setData([steps, of(found.loss, 1)]);
    plots[1].setData([steps, of(found.step_s, 1000)]);
  }

  const again = () => update().catch(() => undefined);
  again();
  if (!place.dataset.ended) setInterval(again, EVERY_MS);
  addEventListener("resize", () => plots.forEach((each) => each.setSize({ width: width(), height: 200 })));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    plots.splice(0).forEach((each) => each.destroy());
    again();
  });
})();
