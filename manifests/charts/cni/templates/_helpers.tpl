{{/* Labels of all objects. */}}
{{- define "cni.labels" -}}
app: istio-cni
app.kubernetes.io/name: istio-cni
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: istio
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
istio.io/rev: {{ .Values.revision | default "default" | quote }}
operator.istio.io/component: Cni
release: {{ .Release.Name }}
{{- end }}

{{/* Whether objects of a scope, cluster or namespace, are rendered. */}}
{{- define "cni.renders" -}}
{{- if has .root.Values.global.resourceScope (list "all" .scope) }}true{{ end }}
{{- end }}
