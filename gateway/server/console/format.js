// Numbers, sizes, durations and times as the console shows them.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
const clock = new Intl.DateTimeFormat("en-GB", {hour: "2-digit", minute: "2-digit", second: "2-digit"});
const day = new Intl.DateTimeFormat("en-GB", {day: "2-digit", month: "short", year: "numeric"});

export const whole = n => (n === undefined || n === null ? "–" : Number(n).toLocaleString("en", {maximumFractionDigits: 0}));

export function compact(n) {
  if (n === undefined || n === null || !Number.isFinite(n)) return "–";
  if (Math.abs(n) >= 1e6) return (n / 1e6).toFixed(n >= 1e7 ? 1 : 2) + " M";
  if (Math.abs(n) >= 1e4) return (n / 1e3).toFixed(n >= 1e5 ? 0 : 1) + " k";
  return Math.abs(n) < 10 && n % 1 ? n.toFixed(1) : whole(n);
}

export function size(n) {
  if (n === undefined || n === null || !Number.isFinite(n)) return "–";
  let unit = 0;
  while (n >= 1024 && unit < UNITS.length - 1) {
    n /= 1024;
    unit += 1;
  }
  return (unit && n < 100 ? n.toFixed(1) : Math.round(n)) + " " + UNITS[unit];
}

export function millis(n) {
  if (n === undefined || n === null || !Number.isFinite(n)) return "–";
  if (n >= 1000) return span(n);
  if (n >= 10) return Math.round(n) + " ms";
  return n >= 0.095 ? n.toFixed(1) + " ms" : Math.round(n * 1000) + " µs";
}

// A duration in its largest unit that fits.
export function span(ms) {
  if (ms === undefined || ms === null) return "–";
  const s = Math.floor(ms / 1000);
  if (s < 60) return (s < 10 && ms % 1000 >= 100 ? (ms / 1000).toFixed(1) : s) + " s";
  if (s < 3600) return Math.floor(s / 60) + " min";
  if (s < 172800) return Math.floor(s / 3600) + " h";
  return Math.floor(s / 86400) + " d";
}

export const ago = ts => (ts ? (Date.now() - ts < 1500 ? "just now" : span(Math.max(Date.now() - ts, 0)) + " ago") : "never");

export function time(ts) {
  const at = new Date(ts);
  return clock.format(at) + "." + String(at.getMilliseconds()).padStart(3, "0");
}

export const stamp = ts => `${day.format(new Date(ts))}, ${time(ts)}`;
export const plural = (n, one, many = one + "s") => `${whole(n)} ${n === 1 ? one : many}`;
