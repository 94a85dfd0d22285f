{{/* The name of the DaemonSet, of its service account, and of its rights. */}}
{{- define "ztunnel.name" -}}
{{ .Values.resourceName | default "ztunnel" }}
{{- end }}

{{/* A value of the chart, or else of `global`. */}}
{{- define "ztunnel.value" -}}
{{ get .root.Values .name | default (get .root.Values.global .name) }}
{{- end }}

{{/* Labels of all objects. */}}
{{- define "ztunnel.labels" -}}
app: ztunnel
app.kubernetes.io/name: ztunnel
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: istio
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
istio.io/rev: {{ .Values.revision | default "default" | quote }}
operator.istio.io/component: Ztunnel
release: {{ .Release.Name }}
{{- end }}

{{/* Labels and annotations of all objects, with those of the values. */}}
{{- define "ztunnel.metadata" -}}
labels:
  {{- include "ztunnel.labels" . | nindent 2 }}
  {{- with .Values.labels }}{{ toYaml . | nindent 2 }}{{ end }}
{{- if or .Values.annotations .Values.revision }}
annotations:
  {{- with .Values.revision }}
  istio.io/rev: {{ . | quote }}
  {{- end }}
  {{- with omit .Values.annotations "istio.io/rev" }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}
{{- end }}

{{/* Whether objects of a scope, cluster or namespace, are rendered. */}}
{{- define "ztunnel.renders" -}}
{{- $scope := include "ztunnel.value" (dict "root" .root "name" "resourceScope") | default "all" }}
{{- if has $scope (list "all" .scope) }}true{{ end }}
{{- end }}

{{/* The address of the control plane for discovery and certificates. */}}
{{- define "ztunnel.controlPlane" -}}
{{- $namespace := include "ztunnel.value" (dict "root" . "name" "istioNamespace") }}
{{- $revision := .Values.revision | default "default" }}
{{- printf "istiod%s.%s.svc:15012" (eq $revision "default" | ternary "" (printf "-%s" $revision)) ($namespace | default "istio-system") }}
{{- end }}
