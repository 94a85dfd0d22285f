{{- define "gateway.name" -}}
{{ .Values.name | default .Release.Name }}
{{- end }}

{{- /* The labels that select the pods. Names like istio-ingressgateway are known without the prefix in selectors of Gateways. */}}
{{- define "gateway.selector" -}}
{{- $name := include "gateway.name" . -}}
app: {{ .Values.labels.app | default $name | quote }}
istio: {{ .Values.labels.istio | default (trimPrefix "istio-" $name) | quote }}
{{- end }}

{{- define "gateway.labels" -}}
{{ include "gateway.selector" . }}
app.kubernetes.io/name: {{ include "gateway.name" . }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
app.kubernetes.io/part-of: istio
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{- range $name, $value := omit .Values.labels "app" "istio" }}
{{ $name }}: {{ quote $value }}
{{- end }}
{{- end }}

{{- define "gateway.serviceAccountName" -}}
{{ .Values.serviceAccount.name | default (ternary (include "gateway.name" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- /* Metadata of an object with the name of the gateway. */}}
{{- define "gateway.metadata" -}}
name: {{ include "gateway.name" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "gateway.labels" . | nindent 2 }}
{{- with .Values.annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
