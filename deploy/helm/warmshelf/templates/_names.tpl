{{- define "warmshelf.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{- define "warmshelf.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains (include "warmshelf.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "warmshelf.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "warmshelf.selectorLabels" -}}
app.kubernetes.io/name: {{ include "warmshelf.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "warmshelf.labels" -}}
{{ include "warmshelf.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: warmshelf
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- /* Which pods have a daemon: in sidecar mode they are yours, and carry this label. */ -}}
{{- define "warmshelf.daemonLabels" -}}
{{- if eq .Values.mode "node" -}}
{{ include "warmshelf.selectorLabels" . }}
app.kubernetes.io/component: daemon
{{- else -}}
{{ include "warmshelf.sidecar.labels" . }}
{{- end -}}
{{- end }}

{{- define "warmshelf.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{- end -}}
{{- end -}}
{{- end }}
