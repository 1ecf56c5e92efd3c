package fence_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/holdlock/holdlock/fence"
)

// A holder that has been overtaken is refused, whatever it believes.
func ExampleMemory_Do() {
	ctx := context.Background()
	var marks fence.Memory
	var report string

	paused := fence.Claim{Name: "report", Token: 33} // fence.Of(lease)
	next := fence.Claim{Name: "report", Token: 34}

	if err := marks.Mark(ctx, next); err != nil { // before it reads
		log.Fatal(err)
	}
	err := marks.Do(paused, func() error { report = "old"; return nil })
	fmt.Println(errors.Is(err, fence.ErrStale))
	fmt.Println(err)

	err = marks.Do(next, func() error { report = "new"; return nil })
	fmt.Println(report, err)
	// Output:
	// true
	// write under lock report refused: overtaken by a later holder (token 33, the resource has seen 34); stop this work
	// new <nil>
}
