// Participants who only watch a room of Janus's VideoRoom, by Pion: what bench.confer holds virtoll-confer against.
//
// One order is read from standard input, as JSON; they join one after another, and of a window that begins lead_ns after
// it was read one line is said. As cheap as Pion allows: packets are decrypted, looked at for their numbers, and left; its
// interceptors repair and report. CPU time is the whole process's, within the window.
package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gorilla/websocket"
	"github.com/pion/ice/v4"
	"github.com/pion/interceptor"
	"github.com/pion/webrtc/v4"
)

const (
	plugin    = "janus.plugin.videoroom"
	keepAlive = 25 * time.Second
	mostBytes = 1500
)

type order struct {
	Address      string        `json:"address"`
	Room         int           `json:"room"`
	Participants int           `json:"participants"`
	Every        time.Duration `json:"every_ns"`
	Lead         time.Duration `json:"lead_ns"`
	Length       time.Duration `json:"duration_ns"`
}

type report struct {
	Joined   int64    `json:"joined"`
	JoinedNs int64    `json:"joined_ns"` // from the first that was to join to the last that had
	Streams  int64    `json:"streams"`   // of which a packet came, up to the window's end
	Packets  int64    `json:"packets"`
	Bytes    int64    `json:"bytes"` // of RTP, decrypted
	Lost     int64    `json:"lost"`
	CPUNs    int64    `json:"cpu_ns"`
	Failures []string `json:"failures"`
}

// What is counted, of all participants together.
type counts struct{ joined, lastJoined, streams, packets, bytes, lost atomic.Int64 }

// message is what Janus says, and what it is asked, as far as it matters here.
type message struct {
	Janus       string `json:"janus"`
	Transaction string `json:"transaction,omitempty"`
	Session     uint64 `json:"session_id,omitempty"`
	Handle      uint64 `json:"handle_id,omitempty"`
	Plugin      string `json:"plugin,omitempty"`
	Body        any    `json:"body,omitempty"`
	JSEP        *jsep  `json:"jsep,omitempty"`
	Data        struct {
		ID uint64 `json:"id"`
	} `json:"data"`
	PluginData struct {
		Data struct {
			Error      string `json:"error"`
			Publishers []struct {
				ID uint64 `json:"id"`
			} `json:"publishers"`
		} `json:"data"`
	} `json:"plugindata"`
}

type jsep struct {
	Type string `json:"type"`
	SDP  string `json:"sdp"`
}

type participant struct {
	order  *order
	counts *counts
	api    *webrtc.API
	socket *websocket.Conn
	write  sync.Mutex
	id     uint64
}

func main() {
	began := time.Now()
	var asked order
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		fmt.Fprintln(os.Stderr, "pion:", err)
		os.Exit(1)
	}
	var all counts
	api := newAPI()
	failures := make(chan string, asked.Participants)
	for number := range asked.Participants {
		one := &participant{order: &asked, counts: &all, api: api}
		time.AfterFunc(time.Duration(number)*asked.Every, func() {
			if err := one.take(); err != nil {
				failures <- err.Error()
			}
		})
	}
	time.Sleep(time.Until(began.Add(asked.Lead)))
	before, used := all.now(began), cpuNs()
	time.Sleep(time.Until(began.Add(asked.Lead + asked.Length)))
	told := all.now(began)
	told.CPUNs = cpuNs() - used
	told.Packets -= before.Packets
	told.Bytes -= before.Bytes
	told.Lost -= before.Lost
	for len(failures) > 0 {
		told.Failures = append(told.Failures, <-failures)
	}
	_ = json.NewEncoder(os.Stdout).Encode(told)
}

// now is what has been counted so far.
func (all *counts) now(began time.Time) report {
	told := report{Joined: all.joined.Load(), Streams: all.streams.Load(), Packets: all.packets.Load(),
		Bytes: all.bytes.Load(), Lost: all.lost.Load(), Failures: []string{}}
	if last := all.lastJoined.Load(); last != 0 {
		told.JoinedNs = last - began.UnixNano()
	}
	return told
}

func cpuNs() int64 {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return usage.Utime.Nano() + usage.Stime.Nano()
}

func newAPI() *webrtc.API {
	media, interceptors, settings := &webrtc.MediaEngine{}, &interceptor.Registry{}, webrtc.SettingEngine{}
	// What repairs and reports, as ours does; not Pion's statistics, which cost something with each packet.
	for _, err := range []error{
		media.RegisterDefaultCodecs(),
		webrtc.ConfigureNack(media, interceptors),
		webrtc.ConfigureRTCPReports(interceptors),
		webrtc.ConfigureTWCCSender(media, interceptors),
	} {
		if err != nil {
			panic(err)
		}
	}
	settings.SetICEMulticastDNSMode(ice.MulticastDNSModeDisabled)
	settings.SetNetworkTypes([]webrtc.NetworkType{webrtc.NetworkTypeUDP4})
	return webrtc.NewAPI(webrtc.WithMediaEngine(media), webrtc.WithInterceptorRegistry(interceptors),
		webrtc.WithSettingEngine(settings))
}

// take has one participant come in and watch all who publish then; it goes on until the connection ends.
func (one *participant) take() error {
	dialer := websocket.Dialer{Subprotocols: []string{"janus-protocol"}, HandshakeTimeout: 10 * time.Second}
	socket, answer, err := dialer.Dial("ws://"+one.order.Address+"/", nil)
	if err != nil {
		return err
	}
	_ = answer.Body.Close()
	one.socket = socket
	if one.id, err = one.made(message{Janus: "create"}); err != nil {
		return err
	}
	comes, err := one.made(message{Janus: "attach", Plugin: plugin})
	if err != nil {
		return err
	}
	body := map[string]any{"request": "join", "ptype": "publisher", "room": one.order.Room, "display": "pion"}
	joined, err := one.asked(comes, body, nil, func(said *message) bool { return said.PluginData.Data.Publishers != nil })
	if err != nil {
		return err
	}
	streams := []map[string]any{}
	for _, publisher := range joined.PluginData.Data.Publishers {
		streams = append(streams, map[string]any{"feed": publisher.ID})
	}
	watches, err := one.made(message{Janus: "attach", Plugin: plugin})
	if err != nil {
		return err
	}
	body = map[string]any{"request": "join", "ptype": "subscriber", "room": one.order.Room, "streams": streams}
	offered, err := one.asked(watches, body, nil, func(said *message) bool { return said.JSEP != nil })
	if err != nil {
		return err
	}
	sdp, err := one.answer(offered.JSEP.SDP)
	if err != nil {
		return err
	}
	if err := one.send(message{Janus: "message", Handle: watches, Body: map[string]any{"request": "start"},
		JSEP: &jsep{"answer", sdp}}); err != nil {
		return err
	}
	go one.keepAlive()
	return one.drain()
}

func (one *participant) send(said message) error {
	said.Session, said.Transaction = one.id, "t"
	text, err := json.Marshal(said) // WriteJSON ends a line, which Janus refuses
	if err != nil {
		return err
	}
	one.write.Lock()
	defer one.write.Unlock()
	return one.socket.WriteMessage(websocket.TextMessage, text)
}

// made asks for a session or a handle, and gives its number.
func (one *participant) made(said message) (uint64, error) {
	if err := one.send(said); err != nil {
		return 0, err
	}
	answer, err := one.next(func(said *message) bool { return said.Janus == "success" })
	if err != nil {
		return 0, err
	}
	return answer.Data.ID, nil
}

func (one *participant) asked(handle uint64, body any, sdp *jsep, is func(*message) bool) (*message, error) {
	if err := one.send(message{Janus: "message", Handle: handle, Body: body, JSEP: sdp}); err != nil {
		return nil, err
	}
	return one.next(is)
}

// next is the first message that is such a one.
func (one *participant) next(is func(*message) bool) (*message, error) {
	for {
		var said message
		if err := one.socket.ReadJSON(&said); err != nil {
			return nil, err
		}
		if said.Janus == "error" || said.PluginData.Data.Error != "" {
			return nil, fmt.Errorf("janus: %s %s", said.Janus, said.PluginData.Data.Error)
		}
		if is(&said) {
			return &said, nil
		}
	}
}

func (one *participant) drain() error {
	for {
		if _, _, err := one.socket.ReadMessage(); err != nil {
			return err
		}
	}
}

func (one *participant) keepAlive() {
	for range time.Tick(keepAlive) {
		if one.send(message{Janus: "keepalive"}) != nil {
			return
		}
	}
}

// answer takes what Janus offers, and counts what comes of it.
func (one *participant) answer(offer string) (string, error) {
	peer, err := one.api.NewPeerConnection(webrtc.Configuration{})
	if err != nil {
		return "", err
	}
	var once sync.Once
	peer.OnConnectionStateChange(func(state webrtc.PeerConnectionState) {
		if state == webrtc.PeerConnectionStateConnected {
			once.Do(func() {
				one.counts.joined.Add(1)
				one.counts.lastJoined.Store(time.Now().UnixNano())
			})
		}
	})
	peer.OnTrack(func(track *webrtc.TrackRemote, _ *webrtc.RTPReceiver) { one.counts.watch(track) })
	if err := peer.SetRemoteDescription(webrtc.SessionDescription{Type: webrtc.SDPTypeOffer, SDP: offer}); err != nil {
		return "", err
	}
	answer, err := peer.CreateAnswer(nil)
	if err != nil {
		return "", err
	}
	gathered := webrtc.GatheringCompletePromise(peer)
	if err := peer.SetLocalDescription(answer); err != nil {
		return "", err
	}
	<-gathered
	return peer.LocalDescription().SDP, nil
}

// watch counts the packets of a stream, and, by their numbers, those that never came.
func (all *counts) watch(track *webrtc.TrackRemote) {
	all.streams.Add(1)
	packet := make([]byte, mostBytes)
	var last uint16
	for isFirst := true; ; isFirst = false {
		length, _, err := track.Read(packet)
		if err != nil {
			return
		}
		number := binary.BigEndian.Uint16(packet[2:])
		all.packets.Add(1)
		all.bytes.Add(int64(length))
		switch gap := number - last; {
		case isFirst || gap == 0:
			last = number
		case gap < 1<<15:
			all.lost.Add(int64(gap) - 1)
			last = number
		default: // it came late: it was taken for lost
			all.lost.Add(-1)
		}
	}
}
