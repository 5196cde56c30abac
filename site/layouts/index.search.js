{{- /* One entry a heading: [address, page, heading, text]. A script and no document, since a
page that is opened from a folder may load no other document. */ -}}
{{- $entries := slice -}}
{{- range partialCached "entries.html" site -}}{{- range .pages -}}
  {{- $page := .page -}}{{- $title := .title -}}
  {{- $html := $page.Content | replaceRE `<a class="anchor".*?</a>` "" | replaceRE `<(p|li|td|th|tr|pre|h[1-6]|br)[ >]` " $0" -}}
  {{- range $i, $part := split ($html | replaceRE `<h[1-6] id="` "\x00") "\x00" -}}
    {{- $id := "" -}}{{- $heading := "" -}}{{- $rest := $part -}}
    {{- if gt $i 0 -}}
      {{- $id = index (split $part `"`) 0 -}}
      {{- $heading = index (split (strings.TrimPrefix (printf `%s">` $id) $part) "</h") 0 | plainify | htmlUnescape -}}
      {{- $rest = replaceRE `(?s)^.*?</h[1-6]>` "" $part -}}
    {{- end -}}
    {{- $text := strings.Trim ($rest | plainify | htmlUnescape | replaceRE `\s+` " ") " " -}}
    {{- if or $text $heading -}}
      {{- $address := strings.TrimPrefix "/" (partial "address.html" $page) -}}
      {{- if $id -}}{{- $address = printf "%s#%s" $address $id -}}{{- end -}}
      {{- $entries = $entries | append (slice (slice $address $title $heading $text)) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}{{- end -}}
{{- with site.GetPage "/openapi.md" -}}{{- $title := partial "title.html" . -}}{{- $address := strings.TrimPrefix "/" .RelPermalink -}}
  {{- range $path, $item := site.Data.openapi.paths -}}{{- range $method := slice "get" "post" "delete" -}}{{- with index $item $method -}}
    {{- $id := partial "operation.html" (dict "method" $method "path" $path) -}}
    {{- $entries = $entries | append (slice (slice (printf "%s#%s" $address $id) $title (printf "%s %s" (upper $method) $path) .summary)) -}}
  {{- end -}}{{- end -}}{{- end -}}
{{- end -}}
window.headgateSearch({{ $entries | jsonify }});
