// What the admin listener says, as the Go package console/now has it: the comments are there.

export interface Amount { slots: number, kv_tokens: number }

export interface Session {
  version: string
  /** operator is whose key was sent, role what it is for; without keys role is admin. */
  operator: string
  role: 'admin' | 'read'
  /** keys: the listener asks for one. */
  keys: boolean
  replica: string
  /** parts are what this process has: pools, batch, fleet, limits. */
  parts: string[]
}

export interface Now {
  at: string
  not_ready?: string
  problems?: string[]
  pools: Pool[]
}

export interface Pool {
  name: string
  not_ready?: string
  observes?: boolean
  draining?: boolean
  lending_paused?: boolean
  bypassed?: boolean
  lease_over?: boolean
  envelope: Amount
  used: Amount
  foreign: Amount
  withheld: Amount
  loans: number
  ghosts: number
  waiting: number
  classes: Class[]
  engines: Engine[]
}

export interface Class {
  name: string
  used: Amount
  floor: Amount
  unlent: Amount
  ceiling: Amount
  hold: Amount
  borrowed: Amount
  loans: number
  lending: boolean
  lending_why?: string
  queue: number
  late?: number
  head?: Head
  recall?: OpenRecall
  offered: number
  admitted: number
  refused: number
  reclaims: number
  recalls: number
}

export interface Head {
  request: string
  waited_s: number
  waits_for: string
  wants: Amount
  forecast_s: number | null
}

export interface OpenRecall { seq: number, since_s: number, loans: number, served: boolean }

export interface Engine {
  name: string
  state: 'ready' | 'loading' | 'down'
  kind: string
  version: string
  total: Amount
  used: Amount
  foreign: Amount
  running: number
  waiting: number
  kv_tokens: number
  age_s: number | null
  error?: string
  demoted?: boolean
  set_aside_s?: number
}

export interface Recall {
  seq: number
  pool: string
  class: string
  request: string
  opened: string
  granted_s: number | null
  admitted_s: number | null
  dispatched_s: number | null
  scheduled_s: number | null
  scheduled_upper_s: number | null
  first_token_s: number | null
  settled_s: number | null
  closed_s: number | null
  reclaims: Reclaim[]
  reclaims_left_out?: number
}

export interface Reclaim { class: string, request: string, hold: number, sent_s: number | null, confirmed_s: number | null }

export interface Traffic {
  every_s: number
  window_s: number
  points: Point[]
  total: Point
}

export interface Point { at: string, span_s: number, classes: TrafficClass[] }

export interface TrafficClass {
  pool: string
  class: string
  finished_per_s: number
  failed_per_s: number
  refused_per_s: number
  on_time: number | null
  ttft_p50_s: number | null
  ttft_p95_s: number | null
  wait_p50_s: number | null
  wait_p95_s: number | null
  waste_tokens: number
  outcomes?: Record<string, number>
  tenants?: TrafficTenant[]
}

export interface TrafficTenant { tenant: string, work_tokens: number, waiting: number, ahead_tokens: number }
