package redishold

import (
	"context"
	"sync"

	"github.com/holdlock/holdlock/driver"
)

// clusterCallers is how many calls for as many keys are under way at once on a Cluster.
const clusterCallers = 16

// together calls f with 0 to n − 1, some at a time: on a Cluster each key may be on another node, and redirections are
// followed for single commands.
func together(n int, f func(i int)) {
	next := make(chan int, n)
	for i := range n {
		next <- i
	}
	close(next)
	var callers sync.WaitGroup
	for range min(clusterCallers, n) {
		callers.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	callers.Wait()
}

// renewEach renews terms one by one.
func (d *Driver) renewEach(ctx context.Context, reqs []*driver.RenewRequest, which []int, results []driver.RenewResult) {
	together(len(which), func(i int) { d.renewTogether(ctx, reqs, which[i:i+1], results) })
}
