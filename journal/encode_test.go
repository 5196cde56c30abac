package journal

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
	"time"
)

// TestEncoder: lines are what encoding/json makes of an event, whichever fields it has.
func TestEncoder(t *testing.T) {
	var all []Event
	full := reflect.New(reflect.TypeFor[Event]()).Elem()
	for i := range full.NumField() {
		if f := full.Field(i); f.Kind() == reflect.Pointer {
			f.Set(reflect.New(f.Type().Elem()))
			for k := range f.Elem().NumField() {
				if part := f.Elem().Field(k); part.Kind() == reflect.String {
					part.SetString("<why>")
				}
			}
		}
		for _, value := range []any{
			"", "team-a", "two\nlines, \"quoted\" \\ <&> \u2028 é \xff", int64(-7), uint64(1) << 63, true,
			time.Date(2026, 11, 30, 13, 0, 0, 5000, time.UTC), time.Date(2026, 11, 30, 13, 0, 0, 0, time.UTC),
		} {
			one := reflect.New(full.Type()).Elem()
			v := reflect.ValueOf(value)
			if !v.CanConvert(full.Field(i).Type()) || v.Kind() != full.Field(i).Kind() && !(v.CanInt() && full.Field(i).CanInt()) {
				continue
			}
			v = v.Convert(full.Field(i).Type())
			one.Field(i).Set(v)
			full.Field(i).Set(v)
			all = append(all, one.Interface().(Event))
		}
		if full.Field(i).IsZero() {
			t.Errorf("no value of the test is one of %s", full.Type().Field(i).Name)
		}
	}
	all = append(all, Event{}, full.Interface().(Event))
	var got, want bytes.Buffer
	enc, std := newEncoder(), json.NewEncoder(&want)
	std.SetEscapeHTML(false)
	for i := range all {
		got.Reset()
		want.Reset()
		if err := std.Encode(&all[i]); err != nil {
			t.Fatal(err)
		}
		if err := enc.append(&got, &all[i]); err != nil {
			t.Fatal(err)
		}
		if got.String() != want.String() {
			t.Errorf("got  %swant %s", got.String(), want.String())
		}
	}
}
