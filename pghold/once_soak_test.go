//go:build soak && unix

package pghold

import "testing"

func TestSoakSettlement(t *testing.T) {
	if wrong := newSettlement(t, "once").run(1000); len(wrong) > 0 {
		t.Errorf("jobs that are not in the ledger exactly once: %v", wrong)
	}
}
