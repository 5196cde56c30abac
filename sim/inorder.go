package sim

import (
	"fmt"
	"runtime/debug"
	"sync"
)

// inOrder calls work for 0 to n-1, so many at once as there are workers, and
// take for each result, in order and never twice at once. The error it returns
// is the one of the lowest number, as if the calls had been made one after
// another; when it returns, nothing of it runs any more.
//
// Results that wait for an earlier one are held, but not many: no work begins
// that is too far ahead of what was taken.
func inOrder[T any](n, workers int, work func(i int) (T, error), take func(i int, result T) error) error {
	type outcome struct {
		result T
		err    error
	}
	type job struct {
		i   int
		out chan outcome
	}
	todo := make(chan job)
	ahead := make(chan chan outcome, 4*workers) // results in order, done or not
	stop := make(chan struct{})
	var running sync.WaitGroup
	defer running.Wait()
	defer close(stop)
	running.Go(func() {
		defer close(ahead)
		defer close(todo)
		for i := range n {
			j := job{i, make(chan outcome, 1)}
			select {
			case ahead <- j.out:
			case <-stop:
				return
			}
			select {
			case todo <- j:
			case <-stop:
				return
			}
		}
	})
	for range workers {
		running.Go(func() {
			for j := range todo {
				result, err := caught(work, j.i)
				j.out <- outcome{result, err}
			}
		})
	}
	i := 0
	for out := range ahead {
		o := <-out
		if o.err != nil {
			return o.err
		}
		if err := take(i, o.result); err != nil {
			return err
		}
		i++
	}
	return nil
}

// caught makes an error of a panic: a run may have a policy in which nobody has thought of
// what it finds, and beside it is a gateway that serves.
func caught[T any](work func(i int) (T, error), i int) (result T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("run %d broke: %v\n%s", i+1, p, debug.Stack())
		}
	}()
	return work(i)
}
