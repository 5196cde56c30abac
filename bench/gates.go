package bench

// Names of the gates.
const (
	GateSchedule   = "schedule_delay"
	GateRate       = "rate"
	GateCPU        = "generator_cpu"
	GateGC         = "gc_pause"
	GateClock      = "clock"
	GateForced     = "forced_output"
	GateTrace      = "trace"
	GateRestart    = "engine_restart"
	GateForeign    = "foreign_requests"
	GateStartKV    = "start_kv"
	GateMemory     = "memory"
	GateBatchQueue = "batch_queue"
	GateDrain      = "drain"
)

// GateNames lists them, in the order in which they are shown.
func GateNames() []string {
	return []string{GateSchedule, GateRate, GateCPU, GateGC, GateClock, GateForced, GateTrace, GateRestart, GateForeign, GateStartKV, GateMemory, GateBatchQueue, GateDrain}
}
