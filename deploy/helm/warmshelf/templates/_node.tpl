{{- /* Privileged, because nothing less may mount on the node; it has ended before the daemon starts. */ -}}
{{- define "warmshelf.node.asRoot" -}}
image: {{ include "warmshelf.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  privileged: true
  runAsUser: 0
  runAsGroup: 0
  runAsNonRoot: false
  readOnlyRootFilesystem: true
resources:
{{- range tuple "requests" "limits" }}
  {{ . }}: {cpu: 100m, memory: 64Mi}
{{- end }}
volumeMounts:
  - name: warmshelf-node
    mountPath: {{ .Values.node.hostPath }}
    mountPropagation: Bidirectional
  - name: warmshelf-scripts
    mountPath: /scripts
    readOnly: true
{{- end }}

{{- /*
With `prepare`, a subPath: it is looked up when the container starts, after the tmpfs has been mounted.
Else volumes of their own, of a type that has to be there: the pod waits for who mounts it.
*/ -}}
{{- define "warmshelf.node.mounts" -}}
- mountPath: /run/warmshelf
{{- if .Values.node.prepare }}
  name: warmshelf-node
  subPath: memory/shelf
{{- else }}
  name: warmshelf-run
{{- end }}
- mountPath: /var/lib/warmshelf
{{- if .Values.node.prepare }}
  name: warmshelf-node
  subPath: state
{{- else }}
  name: warmshelf-state
{{- end }}
{{- end }}

{{- define "warmshelf.node.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{ toYaml . | indent 2 }}
{{- end }}
{{- with .Values.node.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.node.nodeSelector }}
nodeSelector:
{{ toYaml . | indent 2 }}
{{- end }}
{{- with .Values.node.tolerations }}
tolerations:
{{ toYaml . | indent 2 }}
{{- end }}
{{- with .Values.node.affinity }}
affinity:
{{ toYaml . | indent 2 }}
{{- end }}
{{- end }}

{{- /* Takes the chart's context, and the name of the ConfigMap with the script. */ -}}
{{- define "warmshelf.node.hostVolumes" -}}
{{- $path := .context.Values.node.hostPath -}}
{{- if .context.Values.node.prepare }}
- name: warmshelf-node
  hostPath: {path: {{ $path }}, type: DirectoryOrCreate}
- name: warmshelf-scripts
  configMap: {name: {{ .scripts }}, defaultMode: 0555}
{{- else }}
- name: warmshelf-run
  hostPath: {path: {{ $path }}/memory/shelf, type: Directory}
- name: warmshelf-state
  hostPath: {path: {{ $path }}/state, type: Directory}
{{- end }}
{{- end }}

{{- define "warmshelf.node.scriptsName" -}}
{{ include "warmshelf.fullname" . }}-scripts
{{- end }}
