{{- /* Sizes: from 64Gi to bytes, to what the daemon calls it, and whether they fit each other. */ -}}

{{- define "warmshelf.bytes" -}}
{{- $units := dict "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $unit := regexFind "[A-Z]i$" . -}}
{{- mul (trimSuffix $unit . | int64) (get $units $unit) -}}
{{- end }}

{{- /* 64Gi is 64GiB in the daemon's words. */ -}}
{{- define "warmshelf.daemonSize" -}}
{{- if hasSuffix "i" . -}}{{ . }}B{{- else -}}{{ . }}{{- end -}}
{{- end }}

{{- /* The socket's files lie on the same tmpfs; a huge page each is the most that they take. */ -}}
{{- define "warmshelf.sizeLimitBytesMin" -}}
{{- $beside := ternary 0 16777216 (eq .Values.arena.medium "HugePages-2Mi") -}}
{{- add (include "warmshelf.bytes" .Values.arena.budget) $beside -}}
{{- end }}

{{- define "warmshelf.memoryBytesMin" -}}
{{- $reserve := include "warmshelf.bytes" .Values.arena.reserve | int64 -}}
{{- if eq .Values.arena.medium "HugePages-2Mi" -}}{{ $reserve }}
{{- else -}}{{ add (include "warmshelf.sizeLimitBytesMin" .) $reserve }}{{- end -}}
{{- end }}

{{- define "warmshelf.mebibytes" -}}
{{- printf "%dMi" (div (int64 .) 1048576) -}}
{{- end }}

{{- define "warmshelf.sizeLimit" -}}
{{- .Values.arena.sizeLimit | default (include "warmshelf.mebibytes" (include "warmshelf.sizeLimitBytesMin" .)) -}}
{{- end }}

{{- define "warmshelf.memory" -}}
{{- .Values.resources.memory | default (include "warmshelf.mebibytes" (include "warmshelf.memoryBytesMin" .)) -}}
{{- end }}

{{- define "warmshelf.resources" -}}
{{- range tuple "requests" "limits" }}
{{ . }}:
  cpu: {{ $.Values.resources.cpu | quote }}
  memory: {{ include "warmshelf.memory" $ }}
{{- if eq $.Values.arena.medium "HugePages-2Mi" }}
  hugepages-2Mi: {{ include "warmshelf.sizeLimit" $ }}
{{- end }}
{{- end }}
{{- end }}

{{- /* What a schema cannot say: it knows no sums. Included by every manifest with a daemon. */ -}}
{{- define "warmshelf.check" -}}
{{- $arena := .Values.arena -}}
{{- $budget := include "warmshelf.bytes" $arena.budget | int64 -}}
{{- $least := include "warmshelf.sizeLimitBytesMin" . | int64 -}}
{{- if and $arena.sizeLimit (lt (include "warmshelf.bytes" $arena.sizeLimit | int64) $least) -}}
{{- fail (printf "arena.sizeLimit %s is too small for arena.budget %s: it must be %s or more, or be left empty" $arena.sizeLimit $arena.budget (include "warmshelf.mebibytes" $least)) -}}
{{- end -}}
{{- $least = include "warmshelf.memoryBytesMin" . | int64 -}}
{{- if and .Values.resources.memory (lt (include "warmshelf.bytes" .Values.resources.memory | int64) $least) -}}
{{- fail (printf "resources.memory %s is too small for arena.budget %s and arena.reserve %s: it must be %s or more, or be left empty" .Values.resources.memory $arena.budget $arena.reserve (include "warmshelf.mebibytes" $least)) -}}
{{- end -}}
{{- if lt (include "warmshelf.bytes" $arena.reserve | int64) 134217728 -}}
{{- fail (printf "arena.reserve %s is too small: the daemon itself takes 128Mi" $arena.reserve) -}}
{{- end -}}
{{- if eq $arena.medium "HugePages-2Mi" -}}
{{- range $name, $size := dict "budget" $arena.budget "sizeLimit" (include "warmshelf.sizeLimit" .) -}}
{{- if mod (include "warmshelf.bytes" $size | int64) 2097152 -}}
{{- fail (printf "arena.%s %s is no whole number of huge pages of 2Mi" $name $size) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.tcp.port (not .Values.tcp.secretName) -}}
{{- fail "tcp.port is set and tcp.secretName is not: over TCP the daemon speaks TLS only" -}}
{{- end -}}
{{- if hasSuffix "i" $arena.adapterFloor -}}
{{- if gt (include "warmshelf.bytes" $arena.adapterFloor | int64) $budget -}}
{{- fail (printf "arena.adapterFloor %s is more than arena.budget %s" $arena.adapterFloor $arena.budget) -}}
{{- end -}}
{{- end -}}
{{- end }}
