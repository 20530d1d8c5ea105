// What a page does beyond showing: it says when its news stop, and sends a filter without a click.
// Rule: everything that can be read can be read without this file.
"use strict";

function said(text) {
  const place = document.getElementById("connection");
  if (place && place.textContent !== text) place.textContent = text;
}

let newsAt = new Date();
document.addEventListener("htmx:sseOpen", () => said(""));
document.addEventListener("htmx:sseMessage", () => { newsAt = new Date(); });
document.addEventListener("htmx:sseError", () =>
  said(`No connection to the page's server; this is of ${newsAt.toLocaleTimeString()}. Trying again; ` +
    "if it was ended, start `cotenant web` and open its link."));

// What is read at its end stays at its end, unless somebody has scrolled back.
let follows = true;
const isAtEnd = (each) => each.scrollHeight - each.scrollTop - each.clientHeight < 40;
document.addEventListener("scroll", (event) => {
  if (event.target.matches?.("[data-follow]")) follows = isAtEnd(event.target);
}, true);
function toEnd() {
  const output = document.querySelector("[data-follow]");
  if (output && follows) output.scrollTop = output.scrollHeight;
}
addEventListener("load", toEnd);
document.addEventListener("htmx:sseMessage", toEnd);

// A browser keeps six connections to a server: a page that nobody sees gives its own back, and starts anew.
const HIDDEN_MS = 30000;
let source = null, closing = 0;
if (window.htmx) htmx.createEventSource = (address) => (source = new EventSource(address));
document.addEventListener("visibilitychange", () => {
  clearTimeout(closing);
  if (document.hidden) closing = setTimeout(() => { if (source) source.close(); }, HIDDEN_MS);
  else if (source && source.readyState === EventSource.CLOSED) location.reload();
});

document.addEventListener("change", (event) => {
  const form = event.target.closest("form[data-sends-itself]");
  if (form) form.requestSubmit();
});

document.documentElement.classList.add("has-scripts");
document.addEventListener("change", (event) => {
  if (!event.target.matches("[data-choose-all]")) return;
  event.target.closest("table").querySelectorAll("td.choose input").forEach((box) => { box.checked = event.target.checked; });
});

const retry = document.querySelector("[data-retry-ms]");
if (retry) setTimeout(() => location.reload(), Number(retry.dataset.retryMs));
