{{- /*
What your own chart includes, with this chart as a dependency:

  metadata.labels            warmshelf.sidecar.labels
  spec.securityContext       warmshelf.podSecurity
  spec.initContainers        warmshelf.sidecar           first, so that what follows finds it listening
  spec.volumes               warmshelf.sidecar.volumes
  a worker's volumeMounts    warmshelf.worker.volumeMounts
  a worker's env             warmshelf.worker.env

Each takes the dependency's context: `include "warmshelf.sidecar" .Subcharts.warmshelf`.
*/ -}}

{{- define "warmshelf.sidecar.labels" -}}
warmshelf-sidecar: {{ include "warmshelf.fullname" . }}
{{- end }}

{{- /* restartPolicy Always makes an init container a sidecar: it starts before the workers and ends after them. */ -}}
{{- define "warmshelf.sidecar" -}}
{{- include "warmshelf.check" . -}}
- name: warmshelf
  restartPolicy: Always
{{ include "warmshelf.daemon" . | indent 2 }}
  volumeMounts:
    - name: warmshelf-run
      mountPath: /run/warmshelf
{{- if eq .Values.arena.medium "HugePages-2Mi" }}
    - name: warmshelf-huge
      mountPath: /run/warmshelf-huge
{{- end }}
    - name: warmshelf-state
      mountPath: /var/lib/warmshelf
{{ include "warmshelf.extraVolumeMounts" . | indent 4 }}
{{- end }}

{{- define "warmshelf.sidecar.volumes" -}}
- name: warmshelf-run
  emptyDir:
    medium: Memory
    sizeLimit: {{ ternary "16Mi" (include "warmshelf.sizeLimit" .) (eq .Values.arena.medium "HugePages-2Mi") }}
{{- if eq .Values.arena.medium "HugePages-2Mi" }}
- name: warmshelf-huge
  emptyDir:
    medium: HugePages-2Mi
    sizeLimit: {{ include "warmshelf.sizeLimit" . }}
{{- end }}
- name: warmshelf-state
  emptyDir:
    sizeLimit: {{ .Values.stateSizeLimit }}
{{ include "warmshelf.extraVolumes" . }}
{{- end }}

{{- define "warmshelf.podSecurity" -}}
{{ include "warmshelf.runAs" . }}
fsGroup: {{ .Values.user.gid }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- with .Values.seLinuxLevel }}
seLinuxOptions:
  level: {{ . }}
{{- end }}
{{- end }}

{{- /* The same in node mode, where the volume `warmshelf-run` is the claim. */ -}}
{{- define "warmshelf.worker.volumeMounts" -}}
- name: warmshelf-run
  mountPath: /run/warmshelf
  readOnly: true
{{- if eq .Values.arena.medium "HugePages-2Mi" }}
- name: warmshelf-huge
  mountPath: /run/warmshelf-huge
  readOnly: true
{{- end }}
{{- end }}

{{- define "warmshelf.worker.env" -}}
- name: WARMSHELF_ADDRESS
  value: unix:///run/warmshelf/api.sock
- name: WARMSHELF_DAEMON_UID
  value: {{ .Values.user.uid | quote }}
{{- end }}

{{- define "warmshelf.node.volumes" -}}
- name: warmshelf-run
  persistentVolumeClaim:
    claimName: {{ .Values.node.claimName }}
    readOnly: true
{{- end }}
