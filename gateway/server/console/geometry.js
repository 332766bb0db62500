// Where things are in plots and in the graph of routers: plain functions, without a document.

export const BOX = {width: 200, height: 44, beside: 90, below: 26}; // of a topic in the graph, and the room around it
const MOST_DRAWN = 120; // topics

// The nearest round number above: 1, 2 or 5 times a power of ten, of bytes in their largest unit.
export function roundUp(n, bytes = false) {
  if (n <= 0) return 1;
  if (bytes && n >= 1024) return 1024 * roundUp(n / 1024, true);
  const power = 10 ** Math.floor(Math.log10(n));
  return [1, 2, 5, 10].find(step => step * power >= n) * power;
}

// The path of the points, with a new start after each gap.
export function path(points, x, y) {
  let drawn = "";
  let pen = "M";
  for (const [at, value] of points) {
    if (value === null || value === undefined) {
      pen = "M";
      continue;
    }
    drawn += `${pen}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = "L";
  }
  return drawn;
}

// The quantile between two scrapes of a cumulative histogram of microseconds, in ms; null without a sync between them.
export function quantile(now, before, share) {
  const counts = now.buckets.map(({le, count}, i) => [Number(le.replace("+Inf", "Infinity")), count - (before.buckets[i]?.count ?? 0)]);
  const all = counts.at(-1)?.[1] ?? 0;
  if (all <= 0) return null;
  let low = 0;
  let under = 0;
  for (const [bound, count] of counts) {
    if (count >= share * all) {
      if (bound === Infinity) return low / 1000;
      return (low + ((bound - low) * (share * all - under)) / (count - under)) / 1000;
    }
    [low, under] = [bound, count];
  }
  return low / 1000;
}

// A place for each topic: its column is one more than that of what it gets records from; cycles are cut where they close.
export function layout(routers) {
  const sources = new Map();
  for (const {source, dest} of routers) {
    if (!sources.has(source)) sources.set(source, []);
    sources.set(dest, [...(sources.get(dest) ?? []), source]);
  }
  const column = new Map();
  const depth = (topic, path) => {
    if (column.has(topic)) return column.get(topic);
    if (path.has(topic)) return -1;
    const found = Math.max(-1, ...sources.get(topic).map(each => depth(each, new Set(path).add(topic)))) + 1;
    column.set(topic, found);
    return found;
  };
  const topics = [...sources.keys()].sort().slice(0, MOST_DRAWN);
  const columns = [];
  for (const topic of topics) (columns[depth(topic, new Set())] ??= []).push(topic);
  const places = new Map();
  const rows = Math.max(...Array.from(columns, each => each?.length ?? 0), 1);
  const height = rows * (BOX.height + BOX.below) - BOX.below + 24;
  const row = topic => places.get(topic)?.[1] ?? 0;
  columns.forEach((column, at) => {
    // Beside what they get records from, so that few edges cross.
    const mean = topic => sources.get(topic).reduce((sum, each) => sum + row(each), 0) / Math.max(sources.get(topic).length, 1);
    const ordered = at ? column.toSorted((a, b) => mean(a) - mean(b)) : column;
    const top = (height - 16 - ordered.length * (BOX.height + BOX.below) + BOX.below) / 2;
    ordered.forEach((topic, i) => places.set(topic, [4 + at * (BOX.width + BOX.beside), top + i * (BOX.height + BOX.below)]));
  });
  return {places, width: Math.max(columns.length, 1) * (BOX.width + BOX.beside) - BOX.beside + 8, height, left: sources.size - topics.length};
}
