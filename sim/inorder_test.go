package sim

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

// Each call but the last waits for the one after it, so that with enough
// workers results are ready backwards; they are taken forwards all the same.
func TestInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 8
		var done [n + 1]chan struct{}
		for i := range done {
			done[i] = make(chan struct{})
		}
		close(done[n])
		var have []int
		err := inOrder(n, n, func(i int) (int, error) {
			<-done[i+1]
			close(done[i])
			return 10 * i, nil
		}, func(i, result int) error {
			have = append(have, i, result)
			return nil
		})
		if want := []int{0, 0, 1, 10, 2, 20, 3, 30, 4, 40, 5, 50, 6, 60, 7, 70}; err != nil || !slices.Equal(have, want) {
			t.Errorf("took %v, %v", have, err)
		}
	})
}

// The error of the lowest number is returned, though a later one came first,
// and with it nothing runs any more: a goroutine left behind would end the
// bubble with a deadlock.
func TestInOrderFirstErrorWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := make(chan struct{})
		var have []int
		err := inOrder(1000, 4, func(i int) (int, error) {
			switch i {
			case 2:
				<-late
				return 0, errors.New("two")
			case 3:
				close(late)
				return 0, errors.New("three")
			}
			return i, nil
		}, func(i, _ int) error {
			have = append(have, i)
			return nil
		})
		if err == nil || err.Error() != "two" || !slices.Equal(have, []int{0, 1}) {
			t.Errorf("error %v after %v, want two after 0 and 1", err, have)
		}
		err = inOrder(1000, 4, func(i int) (int, error) { return i, nil }, func(i, _ int) error {
			if i == 5 {
				return fmt.Errorf("take %d", i)
			}
			return nil
		})
		if err == nil || err.Error() != "take 5" {
			t.Errorf("error %v, want the taker's", err)
		}
		err = inOrder(3, 2, func(i int) (int, error) { return 1 / (i - 1), nil }, func(int, int) error { return nil })
		if err == nil || !strings.Contains(err.Error(), "run 2 broke: runtime error: integer divide by zero") {
			t.Errorf("error %v, want what the second run broke of", err)
		}
		if err := inOrder(0, 4, func(int) (int, error) { panic("work") }, func(int, int) error { panic("take") }); err != nil {
			t.Error(err)
		}
	})
}

// No more than the workers run at once, and what waits for an earlier result is
// bounded too.
func TestInOrderIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers = 3
		release := make(chan struct{})
		started := make(chan int, 1000)
		ended := make(chan error)
		go func() {
			ended <- inOrder(1000, workers, func(i int) (int, error) {
				started <- i
				if i == 0 {
					<-release
				}
				return i, nil
			}, func(int, int) error { return nil })
		}()
		synctest.Wait()
		// The taker holds the first, what is ahead of it is full, and one more waits
		// to be queued.
		if n := len(started); n != 4*workers+1 {
			t.Errorf("%d calls began while the first one ran, want %d", n, 4*workers+1)
		}
		close(release)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if n := len(started); n != 1000 {
			t.Errorf("%d calls of 1000", n)
		}
		hold := make(chan struct{})
		running := make(chan int, 1000)
		go func() {
			ended <- inOrder(1000, workers, func(i int) (int, error) {
				running <- i
				<-hold
				return i, nil
			}, func(int, int) error { return nil })
		}()
		synctest.Wait()
		if n := len(running); n != workers {
			t.Errorf("%d calls at once, want %d", n, workers)
		}
		close(hold)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
