// How numbers and times are written, everywhere the same.

const whole = new Intl.NumberFormat('en', {maximumFractionDigits: 0})
const clock = new Intl.DateTimeFormat(undefined, {hour: '2-digit', minute: '2-digit', second: '2-digit', hour12: false})
const moment = new Intl.DateTimeFormat(undefined, {year: 'numeric', month: 'short', day: 'numeric', hour: '2-digit', minute: '2-digit', second: '2-digit', hour12: false})

/** none is what is written for what is not known. */
export const none = '–'

/** count writes a whole number: 16,384. */
export function count(n: number): string {
  return whole.format(n)
}

/** short writes a number in at most five characters: 16.4k. */
export function short(n: number): string {
  for (const [unit, letter] of [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']] as const) {
    if (Math.abs(n) >= unit * 0.9995) return digits(n / unit) + letter
  }
  return digits(n)
}

function digits(n: number): string {
  const a = Math.abs(n)
  return String(Number(n.toFixed(a >= 100 ? 0 : a >= 9.995 ? 1 : 2)))
}

/** duration writes seconds in the unit that fits: 0.4 ms, 83 ms, 1.24 s, 3 min 20 s. null is not known. */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return none
  const a = Math.abs(seconds)
  if (a < 0.9995) return milliseconds(seconds)
  if (a < 99.95) return `${seconds.toFixed(a < 9.995 ? 2 : 1)} s`
  if (a < 5400) return `${Math.trunc(seconds / 60)} min ${Math.round(a % 60)} s`
  if (a < 172800) return `${Math.trunc(seconds / 3600)} h ${Math.round((a % 3600) / 60)} min`
  return `${Math.trunc(seconds / 86400)} d ${Math.round((a % 86400) / 3600)} h`
}

/** milliseconds writes seconds in ms, with a digit behind the point below 10. */
export function milliseconds(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return none
  const ms = seconds * 1000
  if (ms === 0) return '0 ms'
  if (ms > 0 && ms < 0.05) return '< 0.1 ms'
  return `${Math.abs(ms) < 9.95 ? ms.toFixed(1) : whole.format(ms)} ms`
}

/** age writes for how many seconds something has been so. */
export function age(seconds: number): string {
  return seconds < 99.95 ? `${seconds.toFixed(1)} s` : duration(seconds)
}

/** share writes a part of 1 in percent. null is not known. */
export function share(part: number | null | undefined): string {
  if (part === null || part === undefined || !Number.isFinite(part)) return none
  const p = part * 100
  // 100 % and 0 % are said only of all and of none.
  if (p > 99.9 && p < 100) return '> 99.9 %'
  if (p > 0 && p < 0.1) return '< 0.1 %'
  return `${p.toFixed(p % 1 === 0 || p >= 99.95 ? 0 : 1)} %`
}

/** rate writes a number a second. */
export function rate(n: number | null | undefined): string {
  return n === null || n === undefined ? none : `${short(n)}/s`
}

/** time writes the time of day of a moment. */
export function time(at: string | number | Date): string {
  return clock.format(new Date(at))
}

/** date writes a moment with its day. */
export function date(at: string | number | Date): string {
  return moment.format(new Date(at))
}

/** plural writes a number with its word: 1 loan, 2 loans. */
export function plural(n: number, one: string, many = one + 's'): string {
  return `${count(n)} ${n === 1 ? one : many}`
}
