package ledger_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/schedulemesh/schedulemesh/ledger"
	"github.com/schedulemesh/schedulemesh/sched"
)

func (w *world) lends(lent map[string]int64) {
	w.t.Helper()
	for name, want := range lent {
		b := w.balance(name)
		if got := b.Lent - b.Borrowed; got != want {
			w.t.Errorf("pool %s lends %d more than it borrows, want %d", name, got, want)
		}
	}
}

func (w *world) complete(id string) {
	w.t.Helper()
	_, err := w.Complete(w.t.Context(), "default", id, "test")
	w.must(err)
	w.settle()
}

// Three pools: two lend to the third, each what it gives; loans go back oldest first, as the
// borrower needs less.
func TestSeveralPoolsLendToOneAndGetItBackOldestFirst(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.policy(`{"cross_pool_priority_threshold": 2}`)
	w.makePool("old", 2)
	w.makePool("new", 2)
	w.makePool("borrower", 1)
	w.run(sub("own", "borrower", 1, 9))
	w.run(sub("of-old", "old", 2, 1))
	w.run(sub("of-new", "new", 2, 1))
	w.run(sub("first", "borrower", 2, 8))
	w.run(sub("second", "borrower", 2, 8))
	w.state("of-old", ledger.Preempted)
	w.state("of-new", ledger.Preempted)
	w.lends(map[string]int64{"old": 2000, "new": 2000, "borrower": -4000})
	p, err := w.Pool(t.Context(), "default", "borrower")
	w.must(err)
	if len(p.Loans) < 2 {
		t.Errorf("the pool shows loans %+v", p.Loans)
	}
	w.verified()
	w = w.restarted()
	w.asFresh()

	var oldest, latest string
	for _, l := range p.Loans {
		if l.Resource == "cpu" && oldest == "" {
			oldest = l.Lender
		} else if l.Resource == "cpu" {
			latest = l.Lender
		}
	}
	w.complete("own")
	w.lends(map[string]int64{oldest: 1000, latest: 2000, "borrower": -3000})
	w.complete("first")
	w.lends(map[string]int64{oldest: 0, latest: 1000, "borrower": -1000})
	w.complete("second")
	w.lends(map[string]int64{oldest: 0, latest: 0, "borrower": 0})
	w.verified()
}

// A preemptor in the borrowing pool inherits the loan: nothing goes back in between.
func TestAPreemptionInTheBorrowingPoolInheritsTheLoan(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.policy(`{"cross_pool_priority_threshold": 2}`)
	w.makePool("lender", 2)
	w.makePool("borrower", 1)
	w.run(sub("own", "borrower", 1, 9))
	w.run(sub("victim", "lender", 2, 1))
	w.run(sub("vip", "borrower", 2, 5))
	w.lends(map[string]int64{"lender": 2000})
	w.submit(sub("heir", "borrower", 2, 8))
	w.state("vip", ledger.Preempting)
	w.lends(map[string]int64{"lender": 2000})
	w = w.restarted()
	w.settle()
	w.state("heir", ledger.Running)
	w.lends(map[string]int64{"lender": 2000})
	w.verified()
	w.complete("heir")
	w.lends(map[string]int64{"lender": 0})
	w.verified()
}

// While its quota is lent, a pool's own tasks wait, and start as the loan comes back; one
// that outranks the borrower's by enough takes from it, like from any other pool.
func TestTheLendersOwnDemandWaitsOrTakes(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.policy(`{"cross_pool_priority_threshold": 2}`)
	w.makePool("lender", 2)
	w.makePool("borrower", 1)
	w.run(sub("own", "borrower", 1, 9))
	w.run(sub("victim", "lender", 2, 1))
	w.run(sub("vip", "borrower", 2, 5))
	w.submit(sub("patient", "lender", 2, 5, queueing))
	w.state("patient", ledger.Queued)
	w.complete("vip")
	w.lends(map[string]int64{"lender": 0})
	w.state("patient", ledger.Running)
	w.verified()

	w.run(sub("vip2", "borrower", 2, 8))
	w.lends(map[string]int64{"lender": 2000})
	w.state("patient", ledger.Preempted)
	w.run(sub("urgent", "lender", 2, 10.5))
	w.state("vip2", ledger.Preempted)
	w.verified()
	w.asFresh()
	w.complete("urgent")
	w.complete("own")
	w.lends(map[string]int64{"lender": 0, "borrower": 0})
	w.verified()
}

// A pool cannot shrink below what it lends, or be deleted while it lends or borrows: the
// error says which and how much.
func TestALoanKeepsBothPoolsAsLargeAsTheyMustBe(t *testing.T) {
	t.Parallel()
	w := open(t)
	ctx := t.Context()
	w.policy(`{"cross_pool_priority_threshold": 2}`)
	w.makePool("lender", 4)
	w.makePool("borrower", 1)
	w.run(sub("own", "borrower", 1, 9))
	w.run(sub("victim", "lender", 3, 1))
	w.run(sub("filler", "lender", 1, 9))
	w.run(sub("vip", "borrower", 3, 8))
	w.lends(map[string]int64{"lender": 3000})
	w.complete("filler")

	resize := func(pool string, cpu int64) error {
		capacity := sched.Resources{CPU: cpu, Memory: 4096}
		_, err := w.UpdatePool(ctx, "default", ledger.PoolSpec{Name: pool, Capacity: &capacity})
		return err
	}
	if err := resize("lender", 2000); !errors.Is(err, ledger.ErrPoolInUse) || !strings.Contains(err.Error(), "3 cpu") {
		t.Errorf("shrinking below what is lent: %v", err)
	}
	w.must(resize("lender", 3000))
	if err := resize("borrower", 500); !errors.Is(err, ledger.ErrPoolInUse) {
		t.Errorf("shrinking below what is in use: %v", err)
	}
	w.must(resize("borrower", 2000)) // has room of its own now: that much goes back
	w.lends(map[string]int64{"lender": 2000})
	if err := w.DeletePool(ctx, "default", "lender", "test"); !errors.Is(err, ledger.ErrPoolInUse) || !strings.Contains(err.Error(), "lends 2 cpu") {
		t.Errorf("deleting a lender: %v", err)
	}
	if err := w.DeletePool(ctx, "default", "borrower", "test"); !errors.Is(err, ledger.ErrPoolInUse) || !strings.Contains(err.Error(), "borrows 2 cpu") {
		t.Errorf("deleting a borrower: %v", err)
	}
	w.verified()
	w = w.restarted()
	w.complete("vip")
	w.complete("own")
	w.must(w.DeletePool(ctx, "default", "borrower", "test"))
	w.must(w.DeletePool(ctx, "default", "lender", "test"))
	w.verified()
}

// Loans and their ends, end to end, while servers come and go at each step of the handover.
func TestALoanIsTheSameThroughARestartAtEveryStep(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.policy(`{"cross_pool_priority_threshold": 2}`)
	w.makePool("lender", 2)
	w.makePool("borrower", 1)
	w.run(sub("own", "borrower", 1, 9))
	w.run(sub("victim", "lender", 2, 1, requeueing))
	w.submit(sub("vip", "borrower", 2, 8))
	for range 8 {
		w = w.restarted()
		w.asFresh()
		w.verified()
		w.lends(map[string]int64{"lender": 2000})
		w.mu.Lock()
		jobs := w.jobs
		w.jobs = nil
		w.mu.Unlock()
		if len(jobs) == 0 {
			break
		}
		w.act(jobs[0])
	}
	w.state("vip", ledger.Running)
	w.state("victim", ledger.Queued)
	w.complete("vip")
	w.state("victim", ledger.Running)
	w.lends(map[string]int64{"lender": 0})
	w.verified()
}
