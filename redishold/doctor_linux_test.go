package redishold

import (
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

func TestDoctorOnWrongClock(t *testing.T) {
	r, clock := testenv.StartRedisWithClock(t, durable...)
	clock.Set(t, -time.Minute)
	for _, f := range diagnose(t, client(r.Addr), nil) {
		if f.Check == "clock" && f.Verdict == driver.Caution && strings.Contains(f.Found, "-1m") {
			return
		}
	}
	t.Error("the doctor does not notice that the server's clock is a minute behind")
}
