{{- /* The values: the defaults, the profile over them, and what the user sets over both. Values of `pilot` at the top level apply last. */}}
{{- define "sluice.values" -}}
{{- $set := omit .Values "defaults" }}
{{- include "sluice.refuse" $set }}
{{- $profile := $set.profile | default (dig "profile" "" ($set.global | default dict)) | default "default" }}
{{- $file := .Files.Get (printf "files/profiles/%s.yaml" $profile) }}
{{- if not $file }}
{{- fail (printf "profile: %q is not known; the profiles are ambient, default, demo, openshift, preview, remote and stable" $profile) }}
{{- end }}
{{- $env := dict }}
{{- range $variable, $versions := .Files.Get "files/compatibility.yaml" | fromYaml }}
{{- if has $set.compatibilityVersion $versions }}{{ $_ := set $env $variable "false" }}{{ end }}
{{- end }}
{{- $compatibility := dict "pilot" (dict "env" $env) }}
{{- $top := dict }}
{{- range $name := keys .Values.defaults.pilot | sortAlpha }}
{{- if hasKey $set $name }}{{ $_ := set $top $name (get $set $name) }}{{ end }}
{{- end }}
{{- $cni := dict "pilot" (dict "cni" ($set.istio_cni | default dict)) }}
{{- $values := mergeOverwrite (deepCopy .Values.defaults) (fromYaml $file) $compatibility $cni (deepCopy $set) (dict "pilot" (deepCopy $top)) }}
{{- $revision := $values.revision | toString }}
{{- if eq $revision "default" }}{{ $revision = "" }}{{ end }}
{{- $namespace := $values.global.istioNamespace | default .Release.Namespace }}
{{- if ne $namespace .Release.Namespace }}
{{- fail (printf "global.istioNamespace: %s is not the namespace of the release, %s" $namespace .Release.Namespace) }}
{{- end }}
{{- if not $values.istiodRemote.enabled }}
{{- $alone := dict
  "global.configCluster" $values.global.configCluster
  "global.remotePilotAddress" $values.global.remotePilotAddress
  "istiodRemote.enabledLocalInjectorIstiod" $values.istiodRemote.enabledLocalInjectorIstiod }}
{{- range $path := keys $alone | sortAlpha }}
{{- if get $alone $path }}{{ fail (printf "%s: this value has no effect without istiodRemote.enabled" $path) }}{{ end }}
{{- end }}
{{- end }}
{{- $platform := $values.platform | default (dig "platform" "" $values.global) }}
{{- mergeOverwrite $values (dict "revision" $revision "platform" $platform "global" (dict "istioNamespace" $namespace "platform" $platform)) | toYaml }}
{{- end }}

{{- /* Values of Istio's charts that have no effect here. */}}
{{- define "sluice.refuse" -}}
{{- $pilot := .pilot | default dict }}
{{- $global := .global | default dict }}
{{- $v2 := dig "v2" dict (.telemetry | default dict) }}
{{- $charts := "set them in the chart ztunnel" }}
{{- $refused := dict
  "telemetry.v2.stackdriver.enabled" (list (dig "stackdriver" "enabled" false $v2) "define the provider in meshConfig.extensionProviders")
  "ztunnel" (list .ztunnel $charts)
  "global.istiod.enableAnalysis" (list (dig "enableAnalysis" false ($global.istiod | default dict)) "configuration is not analysed")
  "global.mountMtlsCerts" (list $global.mountMtlsCerts "certificates of workloads are issued by the control plane or by a signer")
  "global.caName" (list $global.caName "set the signer in pilot.env: EXTERNAL_CA and K8S_SIGNER")
  "global.proxy.tracer" (list (ne (dig "proxy" "tracer" "none" $global | toString) "none") "set meshConfig.defaultConfig.tracing")
  "global.podDNSSearchNamespaces" (list $global.podDNSSearchNamespaces "set dnsConfig in a template of sidecarInjectorWebhook.templates")
}}
{{- range $path := keys $refused | sortAlpha }}
{{- $entry := get $refused $path }}
{{- if first $entry }}{{ fail (printf "%s: this value has no effect: %s" $path (last $entry)) }}{{ end }}
{{- end }}
{{- end }}

{{- /* The name of objects of the control plane, from the values. */}}
{{- define "sluice.name" -}}
istiod{{ with .revision }}-{{ . }}{{ end }}
{{- end }}

{{- /* "true" if the control plane runs in this cluster, from the values. */}}
{{- define "sluice.runsHere" -}}
{{- if or (not .istiodRemote.enabled) .istiodRemote.enabledLocalInjectorIstiod }}true{{ end }}
{{- end }}

{{- /* "true" if objects of the mesh are read from this cluster, from the values. */}}
{{- define "sluice.hasConfiguration" -}}
{{- if or (include "sluice.runsHere" .) .global.configCluster }}true{{ end }}
{{- end }}

{{- /* The name of the Service that proxies connect to, from the values: that of a remote control plane beside one that injects only. */}}
{{- define "sluice.discoveryName" -}}
{{ include "sluice.name" . }}{{ if and .global.remotePilotAddress .istiodRemote.enabledLocalInjectorIstiod }}-remote{{ end }}
{{- end }}

{{- /* The labels of all objects, from a dict of context and values. */}}
{{- define "sluice.labels" -}}
istio.io/rev: {{ .values.revision | default "default" | quote }}
install.operator.istio.io/owning-resource: {{ .values.ownerName | quote }}
operator.istio.io/component: Pilot
release: {{ .context.Release.Name | quote }}
app.kubernetes.io/name: istiod
app.kubernetes.io/instance: {{ .context.Release.Name | quote }}
app.kubernetes.io/managed-by: {{ .context.Release.Service | quote }}
app.kubernetes.io/part-of: istio
app.kubernetes.io/version: {{ .context.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .context.Chart.Name .context.Chart.Version | replace "+" "_" | quote }}
{{- end }}

{{- /* The labels that select the pods of the revision, from the values. They are istiod's, so that its Deployment can be upgraded. */}}
{{- define "sluice.selector" -}}
{{- with .revision -}}
app: istiod
istio.io/rev: {{ quote . }}
{{- else -}}
istio: pilot
{{- end }}
{{- end }}

{{- /* Requests and limits without those that are set to null. */}}
{{- define "sluice.resources" -}}
{{- $resources := dict }}
{{- range $kind, $amounts := . }}
{{- if kindIs "map" $amounts }}
{{- $kept := dict }}
{{- range $name, $amount := $amounts }}
{{- if not (kindIs "invalid" $amount) }}{{ $_ := set $kept $name $amount }}{{ end }}
{{- end }}
{{- $_ := set $resources $kind $kept }}
{{- else }}
{{- $_ := set $resources $kind $amounts }}
{{- end }}
{{- end }}
{{- toYaml $resources }}
{{- end }}
