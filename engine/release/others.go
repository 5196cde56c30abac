package release

import (
	"slices"
	"time"

	"headgate/engine"
)

const (
	// transit is for how long an event of a stream may be on its way to whoever sent the
	// attempt. Of an attempt that was heard of later than that after a sample, the engine
	// held it during the sample.
	transit = 20 * time.Millisecond
	// maxLooks bounds the samples that are kept for what others will say of their time,
	// and maxSaid what each of them has said.
	maxLooks = 64
	maxSaid  = 64
)

// other is one of those who send to the engine too, and what it has said, in order.
type other struct {
	who  string
	said []engine.Presence
}

// told takes in what the others have said last. Who is not among them is there no more.
func (j *judge) told(all []engine.Presence) {
	j.others = slices.DeleteFunc(j.others, func(o other) bool {
		return !slices.ContainsFunc(all, func(p engine.Presence) bool { return p.Who == o.who })
	})
	for _, p := range all {
		i := slices.IndexFunc(j.others, func(o other) bool { return o.who == p.Who })
		if i < 0 {
			i = len(j.others)
			j.others = append(j.others, other{who: p.Who})
		}
		o := &j.others[i]
		if n := len(o.said); n > 0 && o.said[n-1].Begun == p.Begun && o.said[n-1].Ended == p.Ended {
			// The same again was known before, and is so still.
			if last := &o.said[n-1]; last.After.Before(p.After) {
				last.After = p.After
			}
			continue
		}
		o.said = append(o.said, p)
		o.said = slices.Delete(o.said, 0, max(0, len(o.said)-maxSaid))
	}
	j.weigh()
}

// held is how many sequences of others the engine surely had during a sample: of each
// what had begun before it was asked for, less what was not known to run after it came.
func (j *judge) held(s *Sample) (n int) {
	for i := range j.others {
		var begun, gone uint64
		before, after := false, false
		for _, p := range j.others[i].said {
			if !p.Before.After(s.Asked) {
				before, begun = true, max(begun, p.Begun)
			}
			if !p.After.Before(s.At.Add(transit)) && (!after || p.Ended < gone) {
				after, gone = true, p.Ended
			}
		}
		if before && after && begun > gone {
			n += int(begun - gone)
		}
	}
	return n
}
