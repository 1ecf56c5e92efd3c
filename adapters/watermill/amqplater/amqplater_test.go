package amqplater

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/holdlock/holdlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// counting is a marshaler around another.
type counting struct{ amqp.Marshaler }

// particular reads messages of its own kind only.
type particular struct {
	amqp.Marshaler
	panics bool
}

func (p particular) Unmarshal(amqp091.Delivery) (*message.Message, error) {
	if p.panics {
		panic("no tenant")
	}
	return nil, errors.New("no tenant")
}

// A marshaler that cannot be judged is accepted: it may read what it is made for.
func TestParticularMarshaler(t *testing.T) {
	queue := amqp.NewDurableQueueConfig("amqp://localhost")
	for _, panics := range []bool{false, true} {
		queue.Marshaler = particular{amqp.DefaultMarshaler{}, panics}
		if _, err := Config(queue, nil); err != nil {
			t.Error(err)
		}
	}
}

// acks is what a delivery has that came from a broker.
type acks struct{ amqp091.Acknowledger }

// A message that has waited has headers which are not text. The framework's own marshaler would refuse it for ever.
func TestMarshaler(t *testing.T) {
	msg := message.NewMessage("17", []byte("body"))
	msg.Metadata.Set("kind", "order")
	msg.Metadata.Set("x-tenant", "7")
	msg.Metadata.Set(amqp.MetadataRedeliveredKey, "true")
	m := Marshaler(amqp.DefaultMarshaler{})
	p, err := m.Marshal(msg)
	if err != nil {
		t.Fatal(err)
	}
	if _, told := p.Headers[amqp.MetadataRedeliveredKey]; told || !amqp.IsMessageRedelivered(msg) {
		t.Errorf("headers %v of a message with metadata %v", p.Headers, msg.Metadata)
	}
	p.Headers["x-death"] = []any{amqp091.Table{"count": int64(3)}}
	p.Headers["x-delivery-count"] = int64(2)
	p.Headers["x-first-death-queue"] = "jobs.later.500ms"
	d := amqp091.Delivery{Headers: p.Headers, Body: p.Body, Acknowledger: acks{}}
	if _, err := (amqp.DefaultMarshaler{}).Unmarshal(d); err == nil {
		t.Error("the default marshaler reads such headers by now: Marshaler has nothing to do")
	}
	got, err := m.Unmarshal(d)
	if err != nil {
		t.Fatal(err)
	}
	if got.UUID != "17" || string(got.Payload) != "body" || len(got.Metadata) != 2 || got.Metadata.Get("x-tenant") != "7" {
		t.Errorf("read %s, %q, %v", got.UUID, got.Payload, got.Metadata)
	}
	d.Headers["amount"] = int64(5) // the publisher's own: dropping it would hide a mistake
	if _, err := m.Unmarshal(d); err == nil {
		t.Error("a header that is not text is dropped, and not the broker's")
	}
	if _, err := m.Unmarshal(amqp091.Delivery{}); err == nil {
		t.Error("what a closed channel gives is taken for a message")
	}
}

func TestBadConfig(t *testing.T) {
	queue := amqp.NewDurableQueueConfig("amqp://localhost")
	if _, err := Config(queue, nil); !errors.Is(err, holdlock.ErrInvalid) || !strings.Contains(err.Error(), "amqplater.Marshaler") {
		t.Errorf("a subscriber that cannot read what comes back: %v", err)
	}
	queue.Marshaler = counting{Marshaler(queue.Marshaler)}
	for _, delay := range []time.Duration{time.Millisecond, -1, time.Second + time.Microsecond} {
		if _, err := Config(queue, &Options{Delay: delay}); !errors.Is(err, holdlock.ErrInvalid) || !strings.Contains(err.Error(), "Delay") {
			t.Errorf("%s: %v", delay, err)
		}
	}
	if _, err := Config(amqp.Config{}, nil); err == nil {
		t.Error("empty settings are accepted")
	}
	queue.Publish.ChannelPoolSize = 5
	c, err := Config(queue, &Options{Delay: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if name := c.Exchange.GenerateName("jobs"); name != "jobs.later.1m0s" || !c.Publish.ConfirmDelivery || c.Publish.ChannelPoolSize != 0 {
		t.Errorf("the exchange is %q, confirmed %v, a pool of %d", name, c.Publish.ConfirmDelivery, c.Publish.ChannelPoolSize)
	}
	if err := c.TopologyBuilder.BuildTopology(nil, amqp.BuildTopologyParams{QueueName: "jobs"}, c, nil); err == nil {
		t.Error("a subscriber may consume what waits")
	}
}
