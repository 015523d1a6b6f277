{{- /* The daemon's container, less what the modes differ in: its volumes for arena and state. */ -}}
{{- define "warmshelf.daemon" -}}
image: {{ include "warmshelf.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args:
  - --listen=unix:///run/warmshelf/api.sock
{{- if .Values.tcp.port }}
  - --listen={{ .Values.http.host }}:{{ .Values.tcp.port }}
  - --listen-cert-file=/etc/warmshelf-tls/tls.crt
  - --listen-key-file=/etc/warmshelf-tls/tls.key
{{- if .Values.tcp.clientCertificates }}
  - --listen-client-ca-file=/etc/warmshelf-tls/ca.crt
{{- end }}
{{- end }}
  - --arena={{ include "warmshelf.arenaDirectory" . }}
  - --budget={{ include "warmshelf.daemonSize" .Values.arena.budget }}
  - --adapter-floor={{ include "warmshelf.daemonSize" .Values.arena.adapterFloor }}
  - --registry={{ .Values.fleet.registry | default "sqlite:///var/lib/warmshelf/registry.sqlite" }}
{{- range .Values.fleet.neighbours }}
  - --neighbours={{ . }}
{{- end }}
  - --http={{ .Values.http.host }}:{{ .Values.http.port }}
  - --pin={{ .Values.pin }}
  - --log-format={{ .Values.logFormat }}
{{- range .Values.allowSource }}
  - --allow-source={{ . }}
{{- end }}
{{- range .Values.preload }}
  - --preload={{ . }}
{{- end }}
{{- if .Values.declare }}
  - --declare=/etc/warmshelf/declare.toml
{{- end }}
{{- if .Values.config }}
  - --config=/etc/warmshelf/warmshelf.toml
{{- end }}
env:
  - name: WARMSHELF_RESERVE_BYTES
    value: {{ include "warmshelf.daemonSize" .Values.arena.reserve }}
{{- if .Values.fleet.registry }}
{{ include "warmshelf.fleetEnv" . | trim | indent 2 }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . | indent 2 }}
{{- end }}
{{- with .Values.extraEnvFrom }}
envFrom:
{{ toYaml . | indent 2 }}
{{- end }}
ports:
  - name: warmshelf-http
    containerPort: {{ .Values.http.port }}
{{- if .Values.tcp.port }}
  - name: warmshelf-tcp
    containerPort: {{ .Values.tcp.port }}
{{- end }}
# Listening, not loaded: what starts next may begin while the preload goes on.
startupProbe:
  httpGet: {path: /startupz, port: warmshelf-http}
  periodSeconds: 1
  timeoutSeconds: 2
  failureThreshold: 120
readinessProbe:
  httpGet: {path: /readyz, port: warmshelf-http}
  periodSeconds: 5
  timeoutSeconds: 2
livenessProbe:
  httpGet: {path: /livez, port: warmshelf-http}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
resources:
{{ include "warmshelf.resources" . | trim | indent 2 }}
securityContext:
{{ include "warmshelf.containerSecurity" . | indent 2 }}
{{- if .Values.ipcLock }}
    add: [IPC_LOCK]
{{- end }}
{{- end }}

{{- /* What other nodes are told of this one. A label that the pod does not have is empty, which counts as unset. */ -}}
{{- define "warmshelf.fleetEnv" -}}
- name: WARMSHELF_REGISTRY_COPY
  value: /var/lib/warmshelf/registry.sqlite
- name: WARMSHELF_NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
{{- if .Values.tcp.port }}
- name: WARMSHELF_ADVERTISE
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- end }}
{{- if .Values.fleet.zone }}
- name: WARMSHELF_NODE_ZONE
  value: {{ .Values.fleet.zone | quote }}
{{- else if .Values.fleet.zoneLabel }}
- name: WARMSHELF_NODE_ZONE
  valueFrom: {fieldRef: {fieldPath: "metadata.labels['{{ .Values.fleet.zoneLabel }}']"}}
{{- end }}
{{- end }}

{{- define "warmshelf.arenaDirectory" -}}
{{- ternary "/run/warmshelf-huge/arena" "/run/warmshelf/arena" (eq .Values.arena.medium "HugePages-2Mi") -}}
{{- end }}

{{- /* `capabilities` stays last: the daemon may add one. */ -}}
{{- define "warmshelf.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
{{ include "warmshelf.runAs" . }}
seccompProfile:
  type: RuntimeDefault
{{- with .Values.seLinuxLevel }}
seLinuxOptions:
  level: {{ . }}
{{- end }}
capabilities:
  drop: [ALL]
{{- end }}

{{- define "warmshelf.runAs" -}}
runAsUser: {{ .Values.user.uid }}
runAsGroup: {{ .Values.user.gid }}
runAsNonRoot: {{ ne (int .Values.user.uid) 0 }}
{{- end }}

{{- define "warmshelf.extraVolumeMounts" -}}
- name: warmshelf-tmp
  mountPath: /tmp
{{- if or .Values.declare .Values.config }}
- name: warmshelf-config
  mountPath: /etc/warmshelf
  readOnly: true
{{- end }}
{{- if .Values.tcp.port }}
- name: warmshelf-tls
  mountPath: /etc/warmshelf-tls
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "warmshelf.extraVolumes" -}}
- name: warmshelf-tmp
  emptyDir:
    sizeLimit: 64Mi
{{- if or .Values.declare .Values.config }}
- name: warmshelf-config
  configMap:
    name: {{ include "warmshelf.fullname" . }}
{{- end }}
{{- if .Values.tcp.port }}
- name: warmshelf-tls
  secret:
    secretName: {{ .Values.tcp.secretName }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
