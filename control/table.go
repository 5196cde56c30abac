package control

import (
	"slices"

	"headgate/admission"
)

// past is a moment that is past for every core that has begun.
const past = Time(1)

// Share is the table of one replica's core: base, which is the whole pool's, with what
// its grant leaves it, until the lease is over. g is nil before the first grant; ok
// tells whether it is in force: if not, what survives is left. See Holder.Grant.
func Share(base *admission.Table, g *Grant, until Time, ok bool) *admission.Table {
	t := *base
	t.Engines, t.Classes = slices.Clone(base.Engines), slices.Clone(base.Classes)
	if t.Until = until; !ok {
		t.Until = past
	}
	share := func(engine, class string, total Amount) (withheld, survival Amount, there bool) {
		if g == nil {
			return total, Amount{}, engine != ""
		}
		for i := range g.Accounts {
			if c := &g.Accounts[i]; c.Engine == engine && c.Class == class {
				return over(total, c.Amount), least(c.Survival, total), true
			}
		}
		return total, Amount{}, engine != ""
	}
	for i := range t.Engines {
		e := &t.Engines[i]
		e.Shared = true
		e.Withheld, e.Survival, _ = share(e.Name, "", admission.Of(e.Slots, e.KV))
	}
	for i := range t.Classes {
		c := &t.Classes[i]
		if withheld, survival, there := share("", c.Name, c.Ceiling); there {
			c.Shared, c.Withheld, c.Survival = true, withheld, survival
		}
		if g == nil {
			continue
		}
		for j := range g.Classes {
			if p := &g.Classes[j]; p.Class == c.Name {
				c.Whole, c.WholeUnlent, c.Floor = c.Floor, c.Unlent, least(p.Floor, c.Ceiling)
				c.Unlent = least(p.Unlent, c.Floor)
			}
		}
	}
	if g != nil {
		t.Recall = g.Recall
	}
	return &t
}

// Fill takes over into a report what a core with the table t says of itself. The
// engines' gauges are the shell's to add.
func (r *Report) Fill(t *admission.Table, d *admission.Demands) {
	r.Engines, r.Classes = make([]EngineReport, len(t.Engines)), make([]ClassReport, len(t.Classes))
	for i := range t.Engines {
		e := &t.Engines[i]
		var total Amount
		if !e.Closed {
			total = admission.Of(e.Slots, e.KV)
		}
		r.Engines[i] = EngineReport{
			Engine: e.Name, Total: total, Used: d.Engines[i].Used, High: d.Engines[i].Used, Down: d.Engines[i].Down,
			Gauge: Amount{-1, -1}, Others: Amount{-1, -1},
		}
		r.Engines[i].Speed = admission.Speed{Prefills: slices.Clone(d.Engines[i].Speed.Prefills), Tokens: d.Engines[i].Speed.Tokens}
		for _, v := range d.Engines[i].Ends {
			r.Engines[i].Ends = append(r.Engines[i].Ends, End{duration(v.In), v.Amount})
		}
	}
	for k := range t.Classes {
		c := &d.Classes[k]
		r.Classes[k] = ClassReport{
			Class: t.Classes[k].Name, Used: slices.Clone(c.Used), Hold: c.Hold, Waiting: c.Waiting, Head: c.Head, Short: c.Short, Guarded: c.Guarded,
			Waited: duration(c.Waited), Age: duration(c.Age), Late: c.Late, Patience: duration(c.Patience), Admitted: c.Admitted, Rejected: c.Rejected,
			Away: Away{
				Offered: c.Away.Offered, Prompt: c.Away.Prompt, Within: c.Away.Within, Wants: c.Away.Wants, InTime: c.Away.InTime, Recalled: c.Away.Recalled, Pending: duration(c.Away.Pending), Pressed: duration(c.Away.Pressed), Starting: duration(c.Away.Starting),
			},
		}
		for _, s := range c.Away.Starts {
			r.Classes[k].Away.Starts = append(r.Classes[k].Away.Starts, Starts{N: s.N, Tokens: s.Tokens, Age: duration(s.Age)})
		}
	}
	r.Residual = duration(d.Residual)
}

// PoolOf is the pool that a table is of, shared between so many replicas at most.
func PoolOf(name string, base *admission.Table, replicas int) *Pool {
	p := &Pool{Name: name, Replicas: replicas}
	for i := range base.Engines {
		e := &base.Engines[i]
		p.Engines = append(p.Engines, Engine{Name: e.Name, Total: admission.Of(e.Slots, e.KV)})
	}
	for i := range base.Classes {
		c := &base.Classes[i]
		p.Classes = append(p.Classes, Class{Name: c.Name, Floor: c.Floor, Unlent: c.Unlent, Ceiling: c.Ceiling, Windowed: c.Window > 0})
	}
	return p
}

// Still is the report without what changes by the time alone.
func (c ClassReport) Still() ClassReport {
	c.Waited, c.Age, c.Patience = 0, 0, 0
	c.Away.Pending, c.Away.Pressed, c.Away.Starting = min(c.Away.Pending, 0), min(c.Away.Pressed, 0), min(c.Away.Starting, 0)
	c.Away.Starts = slices.Clone(c.Away.Starts)
	for e := range c.Away.Starts {
		c.Away.Starts[e].Age = 0
	}
	return c
}

// Fold makes one row of those that have the same engine's name: a row of an earlier
// configuration may still have work on it. What it is says the row that has a total.
func (r *Report) Fold() {
	at := make([]int, len(r.Engines))
	var rows []EngineReport
	for i := range r.Engines {
		e := &r.Engines[i]
		at[i] = slices.IndexFunc(rows, func(v EngineReport) bool { return v.Engine == e.Engine })
		if at[i] < 0 {
			at[i] = len(rows)
			rows = append(rows, *e)
			continue
		}
		v := &rows[at[i]]
		used, high, ends := plus(v.Used, e.Used), plus(v.High, e.High), append(v.Ends, e.Ends...)
		if e.Total != (Amount{}) {
			*v = *e
		}
		v.Used, v.High, v.Ends = used, high, ends
	}
	if len(rows) == len(r.Engines) {
		return
	}
	r.Engines = rows
	for k := range r.Classes {
		c := &r.Classes[k]
		used, starts := make([]Amount, len(rows)), make([]Starts, min(len(rows), len(c.Away.Starts)))
		for i, n := range at {
			if i < len(c.Used) {
				used[n] = plus(used[n], c.Used[i])
			}
			if i < len(c.Away.Starts) && n < len(starts) {
				s, v := c.Away.Starts[i], &starts[n]
				v.N, v.Tokens, v.Age = v.N+s.N, v.Tokens+s.Tokens, max(v.Age, s.Age)
			}
		}
		c.Used, c.Away.Starts = used, starts
	}
}
