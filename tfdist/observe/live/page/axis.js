// The numbers beside a drawing.

// Returns a number with three digits.
export function short(value) {
  const size = Math.abs(value);
  return size !== 0 && (size < 0.001 || size >= 1e5) ? value.toExponential(1) : String(Number(value.toPrecision(3)));
}

// Returns up to about `count` round numbers between two.
export function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw);
  const first = Math.ceil(low / step) * step, found = [];
  // By their number: a step that is small beside a tick would not change it.
  for (let i = 0; i <= count + 1; i += 1) {
    const tick = first + i * step;
    if (tick <= high + step * 1e-9) found.push(tick);
  }
  return found;
}
