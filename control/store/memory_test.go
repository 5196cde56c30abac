package store_test

import (
	"testing"
	"testing/synctest"
	"time"

	"headgate/control/store"
	"headgate/control/store/storetest"
)

func TestMemory(t *testing.T) {
	storetest.Run(t, func(t *testing.T, story func(t *testing.T, f storetest.Fleet)) {
		synctest.Test(t, func(t *testing.T) {
			m := store.NewMemory()
			defer synctest.Wait()
			story(t, storetest.Fleet{
				TTL: 2 * time.Second,
				Dial: func(t *testing.T) storetest.Client {
					c := m.Dial()
					t.Cleanup(func() { _ = c.Close() })
					return storetest.Client{Store: c, Cut: c.Cut, Heal: c.Heal}
				},
			})
		})
	})
}
