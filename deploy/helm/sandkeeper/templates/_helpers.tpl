{{- define "sandkeeper.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "sandkeeper.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sandkeeper.labels" -}}
{{ include "sandkeeper.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "sandkeeper.image" -}}
{{- if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}{{ else }}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* The container that both the deployment and the migration run; the caller adds name and arguments. */}}
{{- define "sandkeeper.container" -}}
image: {{ include "sandkeeper.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
envFrom:
  - secretRef: { name: {{ .Values.existingSecret | quote }} }
env:
  - { name: SANDKEEPER_FILES_URL, value: {{ required "files.url says where saved files lie: s3://bucket/prefix, or file:///files with files.claim" .Values.files.url | quote }} }
  - { name: SANDKEEPER_PUBLIC_URL, value: {{ .Values.publicUrl | quote }} }
  {{- range $name, $value := .Values.env }}
  - { name: {{ $name }}, value: {{ $value | quote }} }
  {{- end }}
resources: {{- toYaml .Values.resources | nindent 2 }}
volumeMounts:
  - { name: data, mountPath: /data }
  - { name: tmp, mountPath: /tmp }
  {{- if .Values.files.claim }}
  - { name: files, mountPath: /files }
  {{- end }}
{{- end }}

{{- define "sandkeeper.pod" -}}
automountServiceAccountToken: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: { type: RuntimeDefault }
volumes:
  - { name: data, emptyDir: {} }
  - { name: tmp, emptyDir: {} }
  {{- if .Values.files.claim }}
  - { name: files, persistentVolumeClaim: { claimName: {{ .Values.files.claim | quote }} } }
  {{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
